"""Gradients that PyTorch's autograd gives: of functions whose gradient is not what is to be shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


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
