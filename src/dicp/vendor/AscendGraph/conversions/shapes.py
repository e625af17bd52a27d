"""Other shapes and parts of the same values; tensors out of nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.errors import UnsupportedError
from dicp.vendor.AscendGraph.conversions.writing import AscendWriter

aten = torch.ops.aten
_END = (1 << 63) - 1


class ShapeConversions(AscendWriter):
    @register_conversion([aten.view.default, aten._unsafe_view, aten.reshape])
    def view(self, x: Proxy, shape: Sequence[Any]) -> Proxy:
        return self.reshape(x, self.result.shape)

    @register_conversion([aten.clone, aten.alias, aten.detach, aten.lift_fresh_copy])
    def same(self, x: Proxy, **format_: Any) -> Proxy:
        return x

    @register_conversion([aten.permute, aten.transpose.int, aten.t])
    def permute(self, x: Proxy, *dims: Any) -> Proxy:
        order = list(range(self.rank(x)))
        if len(dims) == 1:
            order = [self.axis(x, dim) for dim in dims[0]]
        elif self.rank(x) > 1:
            a, b = (self.axis(x, dim) for dim in dims or (0, 1))
            order[a], order[b] = order[b], order[a]
        return self.transposed(x, order)

    def transposed(self, x: Proxy, order: Sequence[int]) -> Proxy:
        return x if list(order) == sorted(order) else self.ge("Transpose", x, list(order))

    @register_conversion(aten.expand)
    def expand(self, x: Proxy, shape: Sequence[Any], implicit: bool = False) -> Proxy:
        wanted = list(self.result.shape)
        return self.broadcast(self.reshape(x, [1] * (len(wanted) - self.rank(x)) + self.shape(x)), wanted)

    @register_conversion(aten.unsqueeze)
    def unsqueeze(self, x: Proxy, dim: int) -> Proxy:
        return self.ge("Unsqueeze", x, axes=[dim % (self.rank(x) + 1)])  # type: ignore[no-any-return]

    @register_conversion([aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default])
    def squeeze(self, x: Proxy, dims: Any = None) -> Proxy:
        shape = self.shape(x)
        ones = [dim for dim in self.axes(x, dims) if isinstance(shape[dim], int) and shape[dim] == 1]
        return self.ge("Squeeze", x, axis=ones) if ones else x

    @register_conversion(aten.slice.Tensor)
    def slice(self, x: Proxy, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Proxy:
        length = self.shape(x)[self.axis(x, dim)]
        start = 0 if start is None else start
        whole = end is None or (isinstance(end, int) and end >= min(_END, 1 << 62))
        if isinstance(start, int) and isinstance(length, int):
            start = min(max(start + length if start < 0 else start, 0), length)
        return self.part(x, self.axis(x, dim), start, _END if whole else end, step)

    def part(self, x: Proxy, axis: int, start: Any, end: Any, step: int = 1) -> Proxy:
        """Elements of one dimension; an end of _END stands for all that follow."""
        rank, others = self.rank(x), ((1 << self.rank(x)) - 1) ^ (1 << axis)
        begin, stop = [0] * rank, [0] * rank
        begin[axis], stop[axis] = start, 0 if end == _END else end
        return self.ge(  # type: ignore[no-any-return]
            "StridedSlice",
            x,
            begin,
            stop,
            [step if dim == axis else 1 for dim in range(rank)],
            begin_mask=others,
            end_mask=others | (1 << axis if end == _END else 0),
        )

    @register_conversion(aten.slice_scatter)
    def slice_scatter(
        self, x: Proxy, source: Proxy, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
    ) -> Proxy:
        axis = self.axis(x, dim)
        length = self.shape(x)[axis]
        count = self.shape(source)[axis]
        start = 0 if start is None else start
        if not isinstance(start, int) or (start < 0 and not isinstance(length, int)):
            raise UnsupportedError(f"slice_scatter from {start} of {length} elements")
        start = max(start + length, 0) if start < 0 else start
        if step == 1:
            before = [self.part(x, axis, 0, start)] if start else []
            return self.joined([*before, source, self.part(x, axis, start + count, _END)], axis)
        shape = [count if d == axis else 1 for d in range(self.rank(x))]
        places = self.reshape(self.ge("Range", start, start + count * step, step), shape)
        places = self.broadcast(places, self.shape(source))
        return self.ge("ScatterElements", x, places, source, axis=axis)  # type: ignore[no-any-return]

    def joined(self, parts: Sequence[Proxy], axis: int) -> Proxy:
        return self.ge("ConcatD", list(parts), concat_dim=axis, N=len(parts))  # type: ignore[no-any-return]

    @register_conversion(aten.select.int)
    def select(self, x: Proxy, dim: int, index: Any) -> Proxy:
        rank, axis = self.rank(x), self.axis(x, dim)
        others = ((1 << rank) - 1) ^ (1 << axis)
        begin, end = [0] * rank, [0] * rank
        if isinstance(index, int) and index < 0 and isinstance(self.shape(x)[axis], int):
            index += self.shape(x)[axis]
        begin[axis], end[axis] = index, index + 1
        return self.ge(  # type: ignore[no-any-return]
            "StridedSlice", x, begin, end, [1] * rank, begin_mask=others, end_mask=others, shrink_axis_mask=1 << axis
        )  # fmt: skip

    @register_conversion(aten.cat)
    def cat(self, tensors: Sequence[Proxy], dim: int = 0) -> Proxy:
        dtype = self.result.dtype
        kept = [self.cast(x, dtype) for x in tensors if not (self.rank(x) == 1 and self.shape(x) == [0])]
        if not kept:
            raise UnsupportedError("concatenation of nothing but empty tensors")
        if len(kept) == 1:
            return kept[0]
        return self.joined(kept, self.axis(kept[0], dim))

    @register_conversion([aten.split.Tensor, aten.split_with_sizes])
    def split(self, x: Proxy, sizes: Any, dim: int = 0) -> list[Proxy]:
        axis, start, parts = self.axis(x, dim), 0, []
        for value in self.result:
            size = value.shape[axis]
            parts.append(self.part(x, axis, start, start + size))
            start = start + size
        return parts

    @register_conversion(aten.unbind)
    def unbind(self, x: Proxy, dim: int = 0) -> list[Proxy]:
        return [self.select(x, dim, index) for index in range(len(self.result))]

    @register_conversion([aten.full, aten.new_full, aten.full_like])
    def full(self, like: Any, *rest: Any, **options: Any) -> Proxy:
        return self.filled(self.result.shape, rest[-1], self.result.dtype)

    @register_conversion(
        [aten.zeros, aten.zeros_like, aten.new_zeros, aten.empty_like, aten.new_empty, aten.empty]
    )
    def zeros(self, *like: Any, **options: Any) -> Proxy:
        """Memory that nobody wrote to is zero here."""
        return self.filled(self.result.shape, 0, self.result.dtype)

    @register_conversion([aten.ones, aten.ones_like, aten.new_ones])
    def ones(self, *like: Any, **options: Any) -> Proxy:
        return self.filled(self.result.shape, 1, self.result.dtype)

    @register_conversion(aten.scalar_tensor)
    def scalar_tensor(self, value: Any, **options: Any) -> Proxy:
        return self.filled([], value, self.result.dtype)

    @register_conversion(aten.arange)
    def arange(self, *bounds: Any, **options: Any) -> Proxy:
        start, limit, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        if not all(isinstance(bound, int | torch.SymInt) for bound in (start, limit, step)):
            count = self.result.shape[0]
            steps = self.cast(self.ge("Range", 0, count, 1), self.result.dtype)
            scaled = self.ge("Mul", steps, self.scalar_like(step, steps))
            return self.ge("Add", scaled, self.scalar_like(start, steps))  # type: ignore[no-any-return]
        return self.cast(self.ge("Range", start, limit, step), self.result.dtype)

    @register_conversion([aten.embedding.default])
    def embedding(self, weight: Proxy, indices: Proxy, *rest: Any) -> Proxy:
        return self.ge("GatherV2", weight, indices, 0)  # type: ignore[no-any-return]

    @register_conversion(aten.index_select)
    def index_select(self, x: Proxy, dim: int, indices: Proxy) -> Proxy:
        return self.ge("GatherV2", x, indices, self.axis(x, dim))  # type: ignore[no-any-return]

    @register_conversion(aten.gather)
    def gather(self, x: Proxy, dim: int, indices: Proxy, sparse_grad: bool = False) -> Proxy:
        if self.rank(x) == 0:
            raise UnsupportedError("gather of a tensor without dimensions")
        return self.ge("GatherElements", x, indices, dim=self.axis(x, dim))  # type: ignore[no-any-return]
