"""Pooling as windows over an image: one strided part for each place of the kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["adaptive_average_gradient", "average_gradient", "max_pool"]


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def _counts(
    lengths: Sequence[Any],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> list[Any]:
    """How many windows there are along each dimension."""
    found = []
    for length, size, step, edge, gap in zip(lengths, kernel, stride, padding, dilation, strict=True):
        room = length + 2 * edge - gap * (size - 1) - 1
        count = (room + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= length + edge:
            count -= 1  # the last window would start beyond the image
        found.append(count)
    return found


def max_pool(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> Any:
    """The largest of each window, and where in the image it is."""
    kernel, edge, gap = _pair(kernel_size), _pair(padding), _pair(dilation)
    step = _pair(stride) if stride else kernel
    height, width = x.shape[-2:]
    if not x.is_floating_point():
        return NotImplemented
    rows, columns = _counts((height, width), kernel, step, edge, gap, ceil_mode)
    below = max((rows - 1) * step[0] + (kernel[0] - 1) * gap[0] + 1 - height - edge[0], 0)
    right = max((columns - 1) * step[1] + (kernel[1] - 1) * gap[1] + 1 - width - edge[1], 0)
    wide = x
    if any(not isinstance(n, int) or n for n in (*edge, below, right)):
        wide = torch.constant_pad_nd(x, [edge[1], right, edge[0], below], -math.inf)
    parts = [
        wide[
            ...,
            i * gap[0] : i * gap[0] + (rows - 1) * step[0] + 1 : step[0],
            j * gap[1] : j * gap[1] + (columns - 1) * step[1] + 1 : step[1],
        ]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
    stacked = torch.stack(parts)
    place = stacked.argmax(0)
    down = torch.arange(rows, device=x.device) * step[0] - edge[0]
    across = torch.arange(columns, device=x.device) * step[1] - edge[1]
    row = torch.div(place, kernel[1], rounding_mode="floor") * gap[0] + down.unsqueeze(-1)
    column = torch.remainder(place, kernel[1]) * gap[1] + across
    return stacked.amax(0), row * width + column


def average_gradient(
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """Each window's gradient, divided by how many elements it has, given back to them."""
    kernel, edge = _pair(kernel_size), _pair(padding)
    step = _pair(stride) if stride else kernel
    height, width = x.shape[-2:]
    rows, columns = grad.shape[-2:]
    if x.dim() != 4 or any(not isinstance(n, int) for n in (height, width, rows, columns)):
        return NotImplemented
    if divisor_override is not None:
        shares = grad / divisor_override
    else:
        high, wide = (
            _window_lengths(count, size, stride, pad, length, count_include_pad, grad)
            for count, size, stride, pad, length in zip(
                (rows, columns), kernel, step, edge, (height, width), strict=True
            )
        )
        shares = grad / (high.unsqueeze(-1) * wide)
    tall, broad = (
        max((n - 1) * s + k, length + 2 * e)
        for n, s, k, length, e in zip((rows, columns), step, kernel, (height, width), edge, strict=True)
    )
    total = None
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            part = _spread(_spread(shares, -2, step[0], i, tall), -1, step[1], j, broad)
            total = part if total is None else total + part
    assert total is not None
    return total[..., edge[0] : edge[0] + height, edge[1] : edge[1] + width].clone()


def _window_lengths(
    count: int, size: int, stride: int, pad: int, length: int, include_pad: bool, like: Tensor
) -> Tensor:
    """How many elements each window has along a dimension; what lies beyond the padding never counts."""
    low, high = (-pad, length + pad) if include_pad else (0, length)
    first = torch.arange(count, device=like.device) * stride - pad
    found = torch.clamp_max(first + size, high) - torch.clamp_min(first, low)
    return found.to(like.dtype)


def _spread(x: Tensor, dim: int, step: int, first: int, length: int) -> Tensor:
    """Elements `step` apart, the first at `first`, among zeros."""
    count = x.shape[dim]
    if step > 1:
        x = x.unsqueeze(dim)
        shape = list(x.shape)
        shape[dim] = step - 1
        x = torch.cat([x, x.new_zeros(shape)], dim).flatten(dim - 1, dim)
    after = length - first - count * step
    if after < 0:
        x = x.narrow(dim, 0, count * step + after)
        after = 0
    return torch.constant_pad_nd(x, [first, after] if dim == -1 else [0, 0, first, after])


def adaptive_average_gradient(grad: Tensor, x: Tensor) -> Any:
    """Where all windows are equal; others overlap and run eagerly."""
    (height, width), (rows, columns) = x.shape[-2:], grad.shape[-2:]
    if any(not isinstance(n, int) for n in (height, width, rows, columns)):
        return NotImplemented
    if height % rows or width % columns:
        return NotImplemented
    tall, broad = height // rows, width // columns
    shares = (grad / (tall * broad)).unsqueeze(-2).unsqueeze(-1)
    wide = shares.expand(*grad.shape[:-1], tall, columns, broad)
    return wide.reshape(x.shape).clone()
