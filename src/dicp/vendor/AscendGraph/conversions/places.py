"""Reading and writing at indices; edges, repetition, reversal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.errors import UnsupportedError
from dicp.vendor.AscendGraph.conversions.writing import AscendWriter

aten = torch.ops.aten


class PlaceConversions(AscendWriter):
    """An index of ATen may count from the end; GE's are made to count from the front."""

    @register_conversion([aten.index, aten._unsafe_index])
    def index(self, x: Proxy, indices: Sequence[Proxy | None]) -> Proxy:
        order, places, first = self._indexed(x, indices)
        found = self.ge("GatherNd", self._in_order(x, order), places)
        between = self.rank(places) - 1
        back = self._back(len(order), sum(index is not None for index in indices), between, first)
        return self._in_order(found, back)

    @register_conversion([aten.index_put, aten._unsafe_index_put])
    def index_put(
        self, x: Proxy, indices: Sequence[Proxy | None], values: Proxy, accumulate: bool = False
    ) -> Proxy:
        order, places, first = self._indexed(x, indices)
        front = self._in_order(x, order)
        count, between = sum(index is not None for index in indices), self.rank(places) - 1
        back = self._back(len(order), count, between, first)
        # The values have the shape that reading at the same places gives.
        shape = [*self.shape(places)[:-1], *self.shape(front)[count:]]
        given = self._in_order(
            self.broadcast(self._filled_up(values, len(shape)), [shape[dim] for dim in back]), _inverse(back)
        )
        if not accumulate:
            result = self.ge("TensorScatterUpdate", front, places, given)
        else:
            result = self.in_float32(lambda x, given: self._added(x, places, given), front, given)
        return self._in_order(result, _inverse(order))

    def _added(self, x: Proxy, places: Proxy, given: Proxy) -> Proxy:
        if self.dtype(x) == torch.int64:
            raise UnsupportedError("TensorScatterAdd of GE adds no 64-bit integers")
        return self.ge("TensorScatterAdd", x, places, given)  # type: ignore[no-any-return]

    def _indexed(self, x: Proxy, indices: Sequence[Proxy | None]) -> tuple[list[int], Proxy, int]:
        """The indexed dimensions first, the index vectors, and where what they read stands in the result."""
        used = [dim for dim, index in enumerate(indices) if index is not None]
        given = [index for index in indices if index is not None]
        if any(
            not isinstance(index, Proxy) or self.dtype(index) in (torch.bool, torch.uint8) for index in given
        ):
            raise UnsupportedError("indexing by a mask: how much it gives is known at the call only")
        lengths = [self.shape(x)[dim] for dim in used]
        counted = [
            self._from_front(self.cast(i, torch.int64), n) for i, n in zip(given, lengths, strict=True)
        ]
        rank = max(self.rank(index) for index in counted)
        shape = _broadcast([self.shape(index) for index in counted], rank)
        wide = [self.broadcast(self._filled_up(index, rank), shape) for index in counted]
        places = (
            self.ge("Unsqueeze", wide[0], axes=[rank])
            if len(wide) == 1
            else self.ge("Pack", wide, axis=rank, N=len(wide))
        )
        others = [dim for dim in range(self.rank(x)) if dim not in used]
        together = used == list(range(used[0], used[-1] + 1))
        return [*used, *others], places, used[0] if together else 0

    @staticmethod
    def _back(rank: int, count: int, between: int, first: int) -> list[int]:
        """The order that puts the dimensions of the indices, in front after gathering, where the result has them."""
        rest = list(range(between, between + rank - count))
        return [*rest[:first], *range(between), *rest[first:]]

    def _filled_up(self, x: Proxy, rank: int) -> Proxy:
        missing = rank - self.rank(x)
        return self.reshape(x, [1] * missing + self.shape(x)) if missing else x

    def _in_order(self, x: Proxy, order: Sequence[int]) -> Proxy:
        return x if list(order) == sorted(order) else self.ge("Transpose", x, list(order))

    def _from_front(self, index: Proxy, length: Any) -> Proxy:
        zero, shift = self.scalar_like(0, index), self.scalar_like(length, index)
        return self.ge(  # type: ignore[no-any-return]
            "SelectV2", self.ge("Less", index, zero), self.ge("Add", index, shift), index
        )

    @register_conversion([aten.scatter.src, aten.scatter.value])
    def scatter(self, x: Proxy, dim: int, index: Proxy, value: Any) -> Proxy:
        return self._scattered(x, dim, index, value, "none")

    @register_conversion(aten.scatter_add)
    def scatter_add(self, x: Proxy, dim: int, index: Proxy, value: Proxy) -> Proxy:
        return self.in_float32(lambda x, value: self._scattered(x, dim, index, value, "add"), x, value)  # type: ignore[no-any-return]

    def _scattered(self, x: Proxy, dim: int, index: Proxy, value: Any, reduction: str) -> Proxy:
        if not self.rank(x):
            raise UnsupportedError("scatter into a tensor without dimensions")
        shape = self.shape(index)
        if not isinstance(value, Proxy):
            value = self.filled(shape, value, self.dtype(x))
        for axis, length in enumerate(shape):
            if self.shape(value)[axis] != length:
                value = self._front_part(value, axis, length)
        return self.ge(  # type: ignore[no-any-return]
            "ScatterElements", x, index, value, axis=self.axis(x, dim), reduction=reduction
        )

    def _front_part(self, x: Proxy, axis: int, length: Any) -> Proxy:
        rank = self.rank(x)
        end = [0] * rank
        end[axis] = length
        return self.ge(  # type: ignore[no-any-return]
            "StridedSlice",
            x,
            [0] * rank,
            end,
            [1] * rank,
            begin_mask=(1 << rank) - 1,
            end_mask=((1 << rank) - 1) ^ (1 << axis),
        )

    @register_conversion(aten.constant_pad_nd)
    def pad(self, x: Proxy, pads: Sequence[Any], value: Any = 0) -> Proxy:
        if any(isinstance(edge, int) and edge < 0 for edge in pads):
            x, pads = self._cut(x, pads)
        if not any(isinstance(edge, torch.SymInt) or edge for edge in pads):
            return x
        edges = [0] * (2 * self.rank(x) - len(pads)) + [
            edge for dim in range(len(pads) // 2 - 1, -1, -1) for edge in pads[2 * dim : 2 * dim + 2]
        ]
        if self.dtype(x) == torch.bool:
            filled = self.pad_with(self.cast(x, torch.uint8), edges, int(bool(value)))
            return self.cast(filled, torch.bool)
        return self.pad_with(x, edges, value)

    def pad_with(self, x: Proxy, paddings: Sequence[Any], value: Any) -> Proxy:
        return self.ge("PadV3", x, paddings, self.scalar_like(value, x))  # type: ignore[no-any-return]

    def _cut(self, x: Proxy, pads: Sequence[Any]) -> tuple[Proxy, list[Any]]:
        """Negative edges cut off."""
        rank, left = self.rank(x), list(pads)
        for number in range(len(pads) // 2):
            axis = rank - 1 - number
            before, after = left[2 * number : 2 * number + 2]
            cut = [isinstance(edge, int) and edge < 0 for edge in (before, after)]
            if not any(cut):
                continue
            begin, end = [0] * rank, [0] * rank
            others = ((1 << rank) - 1) ^ (1 << axis)
            begin[axis] = -before if cut[0] else 0
            end[axis] = self.shape(x)[axis] + after if cut[1] else 0
            end_mask = others if cut[1] else others | 1 << axis
            x = self.ge("StridedSlice", x, begin, end, [1] * rank, begin_mask=others, end_mask=end_mask)
            left[2 * number : 2 * number + 2] = [
                0 if c else e for c, e in zip(cut, (before, after), strict=True)
            ]
        return x, left

    @register_conversion(aten.flip)
    def flip(self, x: Proxy, dims: Sequence[int]) -> Proxy:
        return self.ge("ReverseV2", x, self.axes(x, dims)) if dims and self.rank(x) else x

    @register_conversion(aten.repeat)
    def repeat(self, x: Proxy, repeats: Sequence[Any]) -> Proxy:
        return self.ge("Tile", self._filled_up(x, len(repeats)), list(repeats)) if repeats else x

    @register_conversion([aten.tril, aten.triu])
    def triangle(self, x: Proxy, diagonal: Any = 0) -> Proxy:
        assert self.node is not None
        if not isinstance(diagonal, int):
            raise UnsupportedError("a diagonal that is known at the call only")
        lower = self.node.target.overloadpacket is aten.tril  # type: ignore[union-attr]
        return self.ge("Tril" if lower else "Triu", x, diagonal=diagonal)  # type: ignore[no-any-return]


def _inverse(order: Sequence[int]) -> list[int]:
    return [list(order).index(dim) for dim in range(len(order))]


def _broadcast(shapes: Sequence[Sequence[Any]], rank: int) -> list[Any]:
    """The shape to which all broadcast; a symbolic length is never 1."""
    found: list[Any] = [1] * rank
    for shape in shapes:
        for place, length in enumerate(shape, rank - len(shape)):
            if not (isinstance(length, int) and length == 1):
                found[place] = length
    return found
