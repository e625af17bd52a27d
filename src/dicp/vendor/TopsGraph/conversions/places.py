"""Reading and writing at indices, by the builder's Gather and Scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.errors import UnsupportedError
from dicp.vendor.TopsGraph.conversions.layers import TopsLayers

__all__ = ["TopsPlaces"]

aten = torch.ops.aten


class TopsPlaces(TopsLayers):
    """An index vector has a component for each indexed dimension, in the last dimension of the indices."""

    def gathered(self, x: Proxy, vectors: Proxy, dims: Sequence[int]) -> Proxy:
        """Of each index vector the part of x, indexed dimensions gone, behind the dimensions of the indices."""
        shape = self.shape(x)
        batch = self.shape(vectors)[:-1]
        rest = [dim for dim in range(len(shape)) if dim not in dims]
        sizes = [1 if dim in dims else length for dim, length in enumerate(shape)]
        offsets = list(range(len(batch), len(batch) + len(rest)))
        numbers = [offsets, list(dims), list(dims), len(batch)]
        return self.write("Gather", x, vectors, numbers, sizes, False)

    def scattered(
        self, x: Proxy, vectors: Proxy, dims: Sequence[int], updates: Proxy, function: str
    ) -> Proxy:
        """Updates have the dimensions of the indices first, then those of x that are not indexed."""
        batch = len(self.shape(vectors)) - 1
        rest = len(self.shape(x)) - len(dims)
        numbers = [list(range(batch, batch + rest)), list(dims), list(dims), batch]
        return self.write("Scatter", x, vectors, updates, numbers, [function])

    def vector_of(self, components: Sequence[Proxy]) -> Proxy:
        parts = [self.reshape(part, [*self.shape(part), 1]) for part in components]
        return self.write("Concatenate", parts, len(self.shape(parts[0])) - 1) if len(parts) > 1 else parts[0]

    def from_front(self, index: Proxy, length: int) -> Proxy:
        """Counted from the front where it was from the end."""
        index = self.convert(index, torch.int64)
        negative = self.write("Less", index, self.constant(0, torch.int64))
        return self.choose(negative, self.write("Add", index, self.constant(length, torch.int64)), index)

    @register_conversion(aten.embedding.default)
    def embedding(self, weight: Proxy, indices: Proxy, *_rest: Any) -> Proxy:
        return self.gathered(weight, self.vector_of([self.convert(indices, torch.int64)]), [0])

    @register_conversion(aten.index_select.default)
    def index_select(self, x: Proxy, dim: int, indices: Proxy) -> Proxy:
        if not self.shape(x) or not self.shape(indices):
            raise UnsupportedError("index_select of a tensor without dimensions")
        axis = dim % len(self.shape(x))
        found = self.gathered(x, self.vector_of([self.convert(indices, torch.int64)]), [axis])
        return self.moved(found, 0, axis)

    def moved(self, x: Proxy, first: int, to: int) -> Proxy:
        order = [dim for dim in range(len(self.shape(x))) if dim != first]
        order.insert(to, first)
        return self.in_order(x, order)

    def in_order(self, x: Proxy, order: Sequence[int]) -> Proxy:
        return x if list(order) == sorted(order) else self.write("Transpose", x, list(order))

    @register_conversion(aten.gather.default)
    def gather(self, x: Proxy, dim: int, indices: Proxy, sparse_grad: bool = False) -> Proxy:
        every = list(range(len(self.shape(x))))
        if not every:
            raise UnsupportedError("gather of a tensor without dimensions")
        return self.gathered(x, self.coordinates(indices, dim % len(every)), every)

    def coordinates(self, indices: Proxy, axis: int) -> Proxy:
        """Of each element the whole position, with the index in place of its own place along an axis."""
        shape = self.shape(indices)
        return self.vector_of(
            [
                self.convert(indices, torch.int64)
                if dim == axis
                else self.write("Iota", dim, shape=shape, dtype=torch.int64)
                for dim in range(len(shape))
            ]
        )

    @register_conversion([aten.scatter.src, aten.scatter.value])
    def scatter(self, x: Proxy, dim: int, indices: Proxy, value: Any) -> Proxy:
        return self.written(x, dim, indices, value, "replace")

    @register_conversion(aten.scatter_add.default)
    def scatter_add(self, x: Proxy, dim: int, indices: Proxy, value: Proxy) -> Proxy:
        found = self.written(self.wide(x), dim, indices, self.wide(value), "add")
        return self.convert(found, self.dtype(x))

    def written(self, x: Proxy, dim: int, indices: Proxy, value: Any, function: str) -> Proxy:
        every, shape = list(range(len(self.shape(x)))), self.shape(indices)
        if not every:
            raise UnsupportedError("scatter into a tensor without dimensions")
        if not isinstance(value, Proxy):
            value = self.constant(value, self.dtype(x), shape)
        for axis, length in enumerate(shape):
            value = self.part(value, axis, 0, length)
        return self.scattered(x, self.coordinates(indices, dim % len(every)), every, value, function)

    @register_conversion([aten.index.Tensor, aten._unsafe_index.Tensor])
    def index(self, x: Proxy, indices: Sequence[Proxy | None]) -> Proxy:
        used, vectors, between = self.indexed(x, indices)
        found = self.gathered(x, vectors, used)
        return self.in_order(found, self.back(x, used, between))

    @register_conversion([aten.index_put.default, aten._unsafe_index_put.default])
    def index_put(
        self, x: Proxy, indices: Sequence[Proxy | None], values: Proxy, accumulate: bool = False
    ) -> Proxy:
        used, vectors, between = self.indexed(x, indices)
        order = self.back(x, used, between)
        rest = [length for dim, length in enumerate(self.shape(x)) if dim not in used]
        gathered = [*self.shape(vectors)[:-1], *rest]
        given = self.broadcast_to(values, [gathered[dim] for dim in order])
        given = self.in_order(given, [order.index(dim) for dim in range(len(order))])
        if not accumulate:
            return self.scattered(x, vectors, used, given, "replace")
        added = self.scattered(self.wide(x), vectors, used, self.wide(given), "add")
        return self.convert(added, self.dtype(x))

    def indexed(self, x: Proxy, indices: Sequence[Proxy | None]) -> tuple[list[int], Proxy, int]:
        """Which dimensions are indexed, the index vectors, and how many dimensions these have."""
        used = [dim for dim, index in enumerate(indices) if index is not None]
        given = [index for index in indices if index is not None]
        if any(self.dtype(index) in (torch.bool, torch.uint8) for index in given):
            raise UnsupportedError("indexing by a mask: how much it gives is known at the call only")
        counted = [self.from_front(index, self.shape(x)[dim]) for index, dim in zip(given, used, strict=True)]
        shape = torch.broadcast_shapes(*(self.shape(index) for index in counted))
        wide = [self.broadcast_to(index, shape) for index in counted]
        return used, self.vector_of(wide), len(shape)

    def back(self, x: Proxy, used: Sequence[int], between: int) -> list[int]:
        """The order that puts the dimensions of the indices, in front after gathering, where ATen has them."""
        together = list(used) == list(range(used[0], used[-1] + 1))
        first = used[0] if together else 0
        rest = list(range(between, between + len(self.shape(x)) - len(used)))
        return [*rest[:first], *range(between), *rest[first:]]

    @register_conversion(aten.slice_scatter.default)
    def slice_scatter(
        self,
        x: Proxy,
        source: Proxy,
        dim: int = 0,
        start: int | None = None,
        end: int | None = None,
        step: int = 1,
    ) -> Proxy:
        axis = dim % len(self.shape(x))
        length = self.shape(x)[axis]
        first, limit, stride = slice(start, end, step).indices(length)
        count = self.shape(source)[axis]
        if not count:
            return x
        if stride == 1:
            parts = [self.part(x, axis, 0, first)] if first else []
            parts.append(source)
            if limit < length:
                parts.append(self.part(x, axis, limit, length))
            return self.write("Concatenate", parts, axis) if len(parts) > 1 else source
        places = self.listed(range(first, first + count * stride, stride), torch.int64)
        return self.scattered(x, self.vector_of([places]), [axis], self.moved(source, axis, 0), "replace")
