"""References of pooling: forms that take the kind of pooling as a text, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diopi.conformance.references.gradients import input_gradient, upcast


def in_order(input: Tensor) -> Tensor:
    """One element after the other: torch's kernels know fewer dtypes and shapes in other layouts."""
    return input.clone(memory_format=torch.contiguous_format)


def max_pool_gradient(grad_output: Tensor, input: Tensor, indices: Tensor, spatial: int) -> Tensor:
    """Every output's gradient goes to the element of the input that it was taken from."""
    planes = input.shape[: input.dim() - spatial]
    total = upcast(torch.zeros(input.shape, dtype=input.dtype)).flatten(len(planes))
    offsets, gradients = indices.flatten(len(planes)), grad_output.flatten(len(planes)).to(total.dtype)
    return total.scatter_add(-1, offsets, gradients).reshape(input.shape).to(input.dtype)


@dataclass(frozen=True)
class _Pooling:
    """`diopiPool1d/2d/3d` without its tensors and the size of its output, in the order of C."""

    spatial: int
    mode: str
    """max or avg"""
    ksize: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil_mode: bool
    exclusive: bool
    """Padded elements do not count in an average."""
    adaptive: bool

    def __call__(self, input: Tensor, output_size: list[int]) -> Tensor:
        input, name = in_order(input), f"{self.mode}_pool{self.spatial}d"
        if self.adaptive:
            return _named(f"adaptive_{name}")(input, output_size)
        window = (self.ksize, self.stride or self.ksize, self.padding)
        last = (self.dilation, self.ceil_mode) if self.mode == "max" else (self.ceil_mode, not self.exclusive)
        return _named(name)(input, *window, *last)


def pooled(spatial: int, input: Tensor, *how: Any) -> Tensor:
    """`how`: what follows the input in C, up to the size of the output."""
    *settings, output_size = how
    return _Pooling(spatial, *settings)(input, output_size)


def pooled_gradient(spatial: int, grad_output: Tensor, input: Tensor, *how: Any) -> Tensor:
    """The gradient of `pooled`; that of a maximum goes where the indices say. `how`: what follows the input in C, up to
    the indices."""
    *settings, indices = how
    pooling = _Pooling(spatial, *settings)
    if indices is not None and pooling.mode == "max":
        return max_pool_gradient(grad_output, input, indices, spatial)
    return input_gradient(pooling, grad_output, input, list(grad_output.shape[-spatial:]))


def _named(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(F, name)
    return function
