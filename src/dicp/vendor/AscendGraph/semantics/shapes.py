"""Operators that move elements: shapes, parts, copies; and tensors out of nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dicp.errors import InvalidGraphError
from dicp.vendor.AscendGraph.operators import computes, computes_all, require_one_dtype

Sizes = Sequence[int]


@computes("Const")
def const(*, value: Any, dtype: torch.dtype, shape: Sizes | None = None) -> Tensor:
    """In a graph of FX nodes `value` is a number or a list; in JSON it is a tensor."""
    found = torch.tensor(value, dtype=dtype)
    return found if shape is None else found.reshape(tuple(shape))


computes_all({"ZerosLike": torch.zeros_like, "OnesLike": torch.ones_like})


@computes("Fill", integers=("dims",))
def fill(dims: Sizes, value: Tensor) -> Tensor:
    return value.expand(tuple(dims)).clone()


@computes("Range", integers=("start", "limit", "delta"))
def range_(start: Any, limit: Any, delta: Any) -> Tensor:
    return torch.arange(start, limit, delta)


@computes("Reshape", integers=("shape",))
def reshape(x: Tensor, shape: Sizes, *, axis: int = 0, num_axes: int = -1) -> Tensor:
    return x.reshape(tuple(shape))


@computes("BroadcastTo", integers=("shape",))
def broadcast_to(x: Tensor, shape: Sizes) -> Tensor:
    return x.expand(tuple(shape)).clone()


@computes("Transpose", integers=("perm",))
def transpose(x: Tensor, perm: Sizes) -> Tensor:
    return x.permute(tuple(perm)).contiguous()


@computes("Unsqueeze")
def unsqueeze(x: Tensor, *, axes: Sizes = ()) -> Tensor:
    for axis in sorted(axes):
        x = x.unsqueeze(axis)
    return x


@computes("Squeeze")
def squeeze(x: Tensor, *, axis: Sizes = ()) -> Tensor:
    return x.squeeze(tuple(axis))


@computes("StridedSlice", integers=("begin", "end", "strides"))
def strided_slice(
    x: Tensor,
    begin: Sizes,
    end: Sizes,
    strides: Sizes,
    *,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Tensor:
    """A bit of begin_mask or end_mask stands for the whole of that side; one of shrink_axis_mask takes one element."""
    shrunk = []
    for dim, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        length = x.shape[dim]
        if shrink_axis_mask >> dim & 1:
            x = x.narrow(dim, first + length if first < 0 else first, 1)
            shrunk.append(dim)
            continue
        start = 0 if begin_mask >> dim & 1 else first
        stop = length if end_mask >> dim & 1 else last
        x = torch.ops.aten.slice.Tensor(x, dim, start, stop, step)
    return x.squeeze(tuple(shrunk)).contiguous()


@computes("ConcatD")
def concat(x: Sequence[Tensor], *, concat_dim: int, N: int = 1) -> Tensor:
    require_one_dtype("ConcatD", *x)
    return torch.cat(list(x), concat_dim)


@computes("Pack")
def pack(x: Sequence[Tensor], *, axis: int = 0, N: int) -> Tensor:
    require_one_dtype("Pack", *x)
    return torch.stack(list(x), axis)


@computes("GatherV2", integers=("axis",))
def gather(
    x: Tensor,
    indices: Tensor,
    axis: int,
    *,
    batch_dims: int = 0,
    is_preprocessed: bool = False,
    negative_index_support: bool = False,
) -> Tensor:
    if negative_index_support:
        indices = torch.where(indices < 0, indices + x.shape[axis], indices)
    taken = x.index_select(axis, indices.reshape(-1))
    return taken.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@computes("GatherElements")
def gather_elements(x: Tensor, index: Tensor, *, dim: int = 0) -> Tensor:
    return x.gather(dim, index.long())


@computes("ScatterElements")
def scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    require_one_dtype("ScatterElements", data, updates)
    if reduction == "add":
        return data.scatter_add(axis, indices.long(), updates)
    return data.scatter(axis, indices.long(), updates)


def _of_last(indices: Tensor) -> tuple[Tensor, ...]:
    return tuple(indices[..., dim].long() for dim in range(indices.shape[-1]))


@computes("GatherNd")
def gather_nd(x: Tensor, indices: Tensor, *, negative_index_support: bool = False) -> Tensor:
    return x[_of_last(indices)]


@computes("TensorScatterUpdate")
def scatter_update(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    require_one_dtype("TensorScatterUpdate", x, updates)
    return x.index_put(_of_last(indices), updates)


@computes("TensorScatterAdd")
def scatter_add(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    require_one_dtype("TensorScatterAdd", x, updates)
    return x.index_put(_of_last(indices), updates, accumulate=True)


@computes("PadV3", integers=("paddings",))
def pad(
    x: Tensor,
    paddings: Sizes,
    constant_values: Tensor | None = None,
    *,
    mode: str = "constant",
    paddings_contiguous: bool = True,
) -> Tensor:
    """Contiguous paddings are pairs, dimension by dimension."""
    if mode != "constant" or not paddings_contiguous:
        raise InvalidGraphError(f"PadV3: expected the mode constant and contiguous paddings, not {mode}")
    shape = [n + paddings[2 * dim] + paddings[2 * dim + 1] for dim, n in enumerate(x.shape)]
    value = x.new_zeros(()) if constant_values is None else constant_values
    result = value.expand(tuple(shape)).clone()
    inner = result
    for dim, length in enumerate(x.shape):
        inner = inner.narrow(dim, paddings[2 * dim], length)
    inner.copy_(x)
    return result


@computes("ReverseV2", integers=("axis",))
def reverse(x: Tensor, axis: Sizes) -> Tensor:
    return x.flip(tuple(axis))


@computes("Tile", integers=("multiples",))
def tile(x: Tensor, multiples: Sizes) -> Tensor:
    return x.repeat(tuple(multiples))


@computes("Tril")
def lower_triangle(x: Tensor, *, diagonal: int = 0) -> Tensor:
    return x.tril(diagonal)


@computes("Triu")
def upper_triangle(x: Tensor, *, diagonal: int = 0) -> Tensor:
    return x.triu(diagonal)
