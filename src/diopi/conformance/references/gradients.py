"""References of gradients that PyTorch's autograd gives, and of element-wise functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F


def gradients(
    function: Callable[..., torch.Tensor], grad_output: torch.Tensor, inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Those of all inputs of a function of tensors. The inputs are laid out one element after the other: torch's kernels
    know fewer dtypes and shapes in other layouts."""
    with torch.enable_grad():
        leaves = [x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in inputs]
        return torch.autograd.grad(function(*leaves), leaves, grad_output)


def input_gradient(
    function: Callable[..., torch.Tensor],
    grad_output: torch.Tensor,
    input: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """That of `function(input, ...)` with respect to its input."""
    return gradients(lambda x: function(x, *args, **kwargs), grad_output, (input,))[0]


def convolution_gradients(
    function: Callable[..., torch.Tensor],
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    *how: Any,
) -> tuple[torch.Tensor | None, ...]:
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


def normalize_gradient(
    grad_output: torch.Tensor, input: torch.Tensor, p: float, axis: int, eps: float
) -> torch.Tensor:
    """The gradient of `F.normalize` with respect to its input."""
    return input_gradient(F.normalize, grad_output, input, p, axis, eps)
