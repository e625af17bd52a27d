"""What the references share: the precision that they compute in, and gradients that PyTorch's autograd gives."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def upcast(tensor: Tensor) -> Tensor:
    """Half dtypes in float32, the precision that sums are kept in; others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def as_float(number: float) -> float:
    """A number as a C `float` holds it: the function never sees more of it."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def gradients(
    function: Callable[..., Tensor], grad_output: Tensor, inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Those of all inputs of a function of tensors. The inputs are laid out one element after the other: torch's kernels
    know fewer dtypes and shapes in other layouts."""
    with torch.enable_grad():
        leaves = [x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in inputs]
        return torch.autograd.grad(function(*leaves), leaves, grad_output)


def input_gradient(
    function: Callable[..., Tensor], grad_output: Tensor, input: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """That of `function(input, ...)` with respect to its input."""
    return gradients(lambda x: function(x, *args, **kwargs), grad_output, (input,))[0]


def convolution_gradients(
    function: Callable[..., Tensor],
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    *how: Any,
) -> tuple[Tensor | None, ...]:
    """Of the input, the weight and, if its size is given, the bias; `how` is what follows the bias in `function`."""
    leaves = [x.detach().requires_grad_() for x in (input, weight)]
    bias = None
    if bias_sizes is not None:
        bias = torch.zeros(bias_sizes, dtype=input.dtype, requires_grad=True)
        leaves.append(bias)
    with torch.enable_grad():
        result = function(leaves[0], leaves[1], bias, *how)
    gradients = torch.autograd.grad(result, leaves, grad_output)
    return (*gradients, None) if bias is None else tuple(gradients)


_ROUNDING = (None, "trunc", "floor")


def rounding_name(mode: int) -> str | None:
    """`diopiRoundMode_t` as PyTorch names it."""
    return _ROUNDING[mode]
