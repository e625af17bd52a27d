"""References of pooling: forms that take the kind of pooling as a text, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def in_order(input: torch.Tensor) -> torch.Tensor:
    """One element after the other: torch's kernels know fewer dtypes and shapes in other layouts."""
    return input.clone(memory_format=torch.contiguous_format)


def gradient_through(
    function: Callable[[torch.Tensor], torch.Tensor], grad_output: torch.Tensor, input: torch.Tensor
) -> torch.Tensor:
    """The gradient at the input of a function of one tensor."""
    leaf = in_order(input.detach()).requires_grad_()
    with torch.enable_grad():
        result = function(leaf)
    return torch.autograd.grad(result, leaf, grad_output)[0]


def given_back(
    grad_output: torch.Tensor, input: torch.Tensor, indices: torch.Tensor, spatial: int
) -> torch.Tensor:
    """Every output's gradient goes to the place of the image that it was taken from."""
    planes = input.shape[: input.dim() - spatial]
    total = torch.zeros(input.shape, dtype=_accumulated(input.dtype)).flatten(len(planes))
    places, gradients = indices.flatten(len(planes)), grad_output.flatten(len(planes)).to(total.dtype)
    return total.scatter_add(-1, places, gradients).reshape(input.shape).to(input.dtype)


def pooled(
    spatial: int,
    input: torch.Tensor,
    mode: str,
    ksize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    exclusive: bool,
    adaptive: bool,
    output_size: list[int],
) -> torch.Tensor:
    """`mode` is max or avg; `exclusive`: padded places do not count in an average."""
    input = in_order(input)
    if adaptive:
        return _named(f"adaptive_{mode}_pool{spatial}d")(input, output_size)
    if mode == "max":
        return _named(f"max_pool{spatial}d")(input, ksize, stride or None, padding, dilation, ceil_mode)
    return _named(f"avg_pool{spatial}d")(input, ksize, stride or ksize, padding, ceil_mode, not exclusive)


def pooled_gradient(
    spatial: int,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    mode: str,
    ksize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    exclusive: bool,
    adaptive: bool,
    indices: torch.Tensor | None,
) -> torch.Tensor:
    """The gradient of `pooled`; that of a maximum goes where the indices say."""
    if indices is not None and mode == "max":
        return given_back(grad_output, input, indices, spatial)
    size = list(grad_output.shape[-spatial:])

    def forward(x: torch.Tensor) -> torch.Tensor:
        return pooled(
            spatial, x, mode, ksize, stride, padding, dilation, ceil_mode, exclusive, adaptive, size
        )

    return gradient_through(forward, grad_output, input)


def _named(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(F, name)
    return function


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
