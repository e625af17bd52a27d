"""References of reductions: which dimensions, whether they stay, and gradients by their definition."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from diopi.conformance.references.gradients import upcast


def dims_or_all(dim: list[int] | None) -> list[int] | None:
    """A list of dimensions; an empty one means all of them."""
    return list(dim) if dim else None


def keeps_dims(out: Tensor | None, input: Tensor) -> bool:
    """Whether the caller allocated an output that keeps the reduced dimensions."""
    return out is not None and out.dim() == input.dim()


def dtype_of(out: Tensor | None) -> torch.dtype | None:
    """The dtype that the caller chose, if he chose one."""
    return None if out is None else out.dtype


def product(input: Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None) -> Tensor:
    """The product over one dimension or over everything."""
    if dim is not None:
        return torch.prod(input, dim, keepdim, dtype=dtype)
    total = torch.prod(input, dtype=dtype)
    return total.reshape([1] * input.dim()) if keepdim else total


def quantified(
    quantifier: Callable[..., Tensor], input: Tensor, dim: int | None, out: Tensor | None
) -> Tensor:
    """`torch.any` or `torch.all` over one dimension or over everything."""
    keepdim = keeps_dims(out, input)
    if dim is not None:
        return quantifier(input, dim, keepdim)
    found = quantifier(input)
    return found.reshape([1] * input.dim()) if keepdim else found


def cumulated_from_the_end(grad_output: Tensor, dim: int) -> Tensor:
    """Element i of a running sum goes into all later ones, so its gradient is the sum of theirs."""
    if grad_output.dim() == 0:
        return grad_output
    return torch.cumsum(grad_output.flip(dim), dim).flip(dim)


def softmax_gradient(grad_output: Tensor, output: Tensor, dim: int) -> Tensor:
    """What the softmax's output and the gradient at it say about the gradient at its input."""
    gradient, value = upcast(grad_output), upcast(output)
    weighted = gradient * value
    return (weighted - value * weighted.sum(dim, keepdim=True)).to(grad_output.dtype)


def log_softmax_gradient(grad_output: Tensor, output: Tensor, dim: int) -> Tensor:
    """The same for the logarithm of a softmax."""
    gradient = upcast(grad_output)
    total = gradient.sum(dim, keepdim=True)
    return (gradient - upcast(output).exp() * total).to(grad_output.dtype)


def vector_norm_gradient(
    grad_output: Tensor, x: Tensor, norm: Tensor, dim: list[int] | None, p: float
) -> Tensor:
    """The gradient of a p-norm, zero where the norm is; the largest elements share that of the maximum norm."""
    axes = [d % max(x.dim(), 1) for d in dim] if dim else list(range(x.dim()))
    if norm.dim() != x.dim():
        for axis in sorted(axes):
            norm, grad_output = norm.unsqueeze(axis), grad_output.unsqueeze(axis)
    size, length, gradient = upcast(x).abs(), upcast(norm), upcast(grad_output)
    if p == 0:
        return torch.zeros_like(x)
    if math.isinf(p):
        chosen = (size == length).to(size.dtype)
        share = chosen / chosen.sum(axes, keepdim=True).clamp(min=1) if axes else chosen
    else:
        share = torch.where(size == 0, 0.0, (size / length) ** (p - 1)) if p != 1 else torch.ones_like(size)
    slope = share * torch.sgn(upcast(x)) * gradient
    return torch.where(length == 0, torch.zeros_like(slope), slope).to(x.dtype)
