"""Operators over dimensions: sums, extremes, positions, scans, softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dicp.vendor.AscendGraph.operators import computes

Axes = Sequence[int]
Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep, dtype=x.dtype),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceProd": _product,
    "ReduceAny": lambda x, axes, keep: x.any(axes, keepdim=keep),
    "ReduceAll": lambda x, axes, keep: x.all(axes, keepdim=keep),
}


def _over_axes(function: Reduction) -> Callable[..., Tensor]:
    """Without axes there is nothing to reduce."""

    def compute(x: Tensor, axes: Axes, *, keep_dims: bool = False) -> Tensor:
        return function(x, tuple(axes), keep_dims) if axes else x.clone()

    return compute


for _name, _function in _REDUCTIONS.items():
    computes(_name, integers=("axes",))(_over_axes(_function))


@computes("ReduceMean", integers=("axes",))
def reduce_mean(
    x: Tensor, axes: Axes, *, keep_dims: bool = False, noop_with_empty_axes: bool = True
) -> Tensor:
    return x.mean(tuple(axes), keepdim=keep_dims) if axes else x.clone()


@computes("ArgMaxV2", integers=("dimension",))
def arg_max(x: Tensor, dimension: int, *, dtype: torch.dtype = torch.int64) -> Tensor:
    return x.argmax(dimension).to(dtype)


@computes("ArgMin", integers=("dimension",))
def arg_min(x: Tensor, dimension: int, *, dtype: torch.dtype = torch.int64) -> Tensor:
    return x.argmin(dimension).to(dtype)


@computes("SoftmaxV2")
def softmax(x: Tensor, *, axes: Axes = (-1,), half_to_float: bool = False) -> Tensor:
    [axis] = axes
    return torch.softmax(x, axis, torch.float32 if half_to_float else None)


@computes("LogSoftmaxV2")
def log_softmax(logits: Tensor, *, axes: Axes = (-1,)) -> Tensor:
    [axis] = axes
    return torch.log_softmax(logits, axis)


@computes("Cumsum", integers=("axis",))
def cumulative_sum(x: Tensor, axis: int, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    turned = x.flip(axis) if reverse else x
    total = torch.cumsum(turned, axis, dtype=x.dtype)
    total = total - turned if exclusive else total
    return total.flip(axis) if reverse else total


@computes("Cumprod", integers=("axis",))
def cumulative_product(x: Tensor, axis: int, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    turned = x.flip(axis) if reverse else x
    if exclusive:
        first = torch.ones_like(turned.narrow(axis, 0, 1))
        turned = torch.cat([first, turned.narrow(axis, 0, x.shape[axis] - 1)], axis)
    total = torch.cumprod(turned, axis, dtype=x.dtype)
    return total.flip(axis) if reverse else total


@computes("TopKV2", integers=("k",))
def top_k(
    x: Tensor, k: int, *, sorted: bool = True, dim: int = -1, largest: bool = True
) -> tuple[Tensor, Tensor]:
    values, places = torch.topk(x, k, dim, largest, sorted)
    return values, places.int()


@computes("Sort")
def sort(
    x: Tensor, *, axis: int = -1, descending: bool = False, stable: bool = False
) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(x, dim=axis, descending=descending, stable=stable)
    return values, places.int()
