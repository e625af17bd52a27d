"""Sums, extremes, positions, scans, and tensors out of nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.errors import UnsupportedError
from dicp.vendor.TopsGraph.conversions.shapes import TopsShapes

__all__ = ["TopsReductions"]

aten = torch.ops.aten


class TopsReductions(TopsShapes):
    """A reduction of the builder has the dtype of its operand: half values are summed in float32, truth as numbers."""

    def reduced(self, name: str, x: Proxy, dims: Any, keepdim: bool) -> Proxy:
        axes = self.dims(dims, len(self.shape(x)))
        return self.write(name, x, keepdim, axes) if axes else x

    @register_conversion([aten.sum.default, aten.sum.dim_IntList])
    def sum(self, x: Proxy, dims: Any = None, keepdim: bool = False, **_options: Any) -> Proxy:
        return self.total("ReduceSum", x, dims, keepdim)

    @register_conversion([aten.mean.default, aten.mean.dim])
    def mean(self, x: Proxy, dims: Any = None, keepdim: bool = False, **_options: Any) -> Proxy:
        return self.total("ReduceMean", x, dims, keepdim)

    @register_conversion([aten.prod.default, aten.prod.dim_int])
    def prod(self, x: Proxy, dims: Any = None, keepdim: bool = False, **_options: Any) -> Proxy:
        return self.total("ReduceProd", x, dims, keepdim)

    def total(self, name: str, x: Proxy, dims: Any, keepdim: bool) -> Proxy:
        dtype = self.result.dtype
        found = self.reduced(name, self.wide(self.convert(x, dtype)), dims, keepdim)
        return self.convert(found, dtype)

    @register_conversion([aten.amax.default, aten.max.default])
    def largest(self, x: Proxy, dims: Any = None, keepdim: bool = False) -> Proxy:
        return self.extreme("ReduceMax", x, dims, keepdim)

    @register_conversion([aten.amin.default, aten.min.default])
    def smallest(self, x: Proxy, dims: Any = None, keepdim: bool = False) -> Proxy:
        return self.extreme("ReduceMin", x, dims, keepdim)

    def extreme(self, name: str, x: Proxy, dims: Any, keepdim: bool) -> Proxy:
        dtype = self.dtype(x)
        number = self.convert(x, torch.uint8) if dtype == torch.bool else x
        return self.convert(self.reduced(name, number, dims, keepdim), dtype)

    @register_conversion([aten.any.default, aten.any.dim, aten.any.dims])
    def any(self, x: Proxy, dims: Any = None, keepdim: bool = False) -> Proxy:
        number = self.convert(self.convert(x, torch.bool), torch.uint8)
        return self.convert(self.reduced("ReduceMax", number, dims, keepdim), self.result.dtype)

    @register_conversion([aten.argmax.default])
    def argmax(self, x: Proxy, dim: int | None = None, keepdim: bool = False) -> Proxy:
        return self.place("ArgMax", x, dim, keepdim)

    @register_conversion([aten.argmin.default])
    def argmin(self, x: Proxy, dim: int | None = None, keepdim: bool = False) -> Proxy:
        return self.place("ArgMin", x, dim, keepdim)

    def place(self, name: str, x: Proxy, dim: int | None, keepdim: bool) -> Proxy:
        rank = len(self.shape(x))
        if not rank:
            return self.constant(0, torch.int64)
        if self.dtype(x) == torch.bool:
            x = self.convert(x, torch.uint8)
        if dim is not None:
            return self.write(name, x, dim % rank, keepdim)
        found = self.write(name, self.reshape(x, [self.type_of(x).numel()]), 0, False)
        return self.reshape(found, [1] * rank) if keepdim else found

    @register_conversion(aten.max.dim)
    def max_and_place(self, x: Proxy, dim: int, keepdim: bool = False) -> list[Proxy]:
        return [self.extreme("ReduceMax", x, dim, keepdim), self.place("ArgMax", x, dim, keepdim)]

    @register_conversion(aten.min.dim)
    def min_and_place(self, x: Proxy, dim: int, keepdim: bool = False) -> list[Proxy]:
        return [self.extreme("ReduceMin", x, dim, keepdim), self.place("ArgMin", x, dim, keepdim)]

    @register_conversion(aten.cumsum.default)
    def cumsum(self, x: Proxy, dim: int, dtype: torch.dtype | None = None) -> Proxy:
        wanted = self.result.dtype
        if not self.shape(x):
            return self.convert(x, wanted)
        axis = self.constant(dim % len(self.shape(x)), torch.int32)
        return self.convert(
            self.write("CumSum", self.wide(self.convert(x, wanted)), axis, False, False), wanted
        )

    @register_conversion(aten.topk.default)
    def topk(self, x: Proxy, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Proxy]:
        return self.chosen(x, k, dim, largest, sorted)

    @register_conversion(aten.sort.default)
    def sort(self, x: Proxy, dim: int = -1, descending: bool = False) -> list[Proxy]:
        length = self.shape(x)[dim] if self.shape(x) else 1
        return self.chosen(x, length, dim, descending, True)

    def chosen(self, x: Proxy, k: int, dim: int, largest: bool, ordered: bool) -> list[Proxy]:
        if not self.shape(x):
            return [x, self.constant(0, torch.int64)]
        if not k:
            raise UnsupportedError("none of the elements")
        axis = dim % len(self.shape(x))
        found = self.write("TopK", x, self.constant(k, torch.int32), axis, ordered, largest, count=k)
        return [self.write("GetTupleElement", found, index) for index in range(2)]

    @register_conversion([aten.full.default, aten.full_like.default, aten.new_full.default])
    def full(self, _like: Any, *rest: Any, **_options: Any) -> Proxy:
        return self.constant(rest[-1], self.result.dtype, self.result.shape)

    @register_conversion([aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default])
    def zeros(self, *_like: Any, **_options: Any) -> Proxy:
        return self.constant(0, self.result.dtype, self.result.shape)

    @register_conversion(
        [
            aten.empty.memory_format,
            aten.empty_like.default,
            aten.new_empty.default,
            aten.empty_permuted.default,
        ]
    )
    def empty(self, *_like: Any, **_options: Any) -> Proxy:
        """Memory that nobody wrote to is zero here."""
        return self.constant(0, self.result.dtype, self.result.shape)

    @register_conversion([aten.ones.default, aten.ones_like.default, aten.new_ones.default])
    def ones(self, *_like: Any, **_options: Any) -> Proxy:
        return self.constant(1, self.result.dtype, self.result.shape)

    @register_conversion(aten.scalar_tensor.default)
    def scalar_tensor(self, value: float, **_options: Any) -> Proxy:
        return self.constant(value, self.result.dtype)

    @register_conversion([aten.arange.default, aten.arange.start, aten.arange.start_step])
    def arange(self, *bounds: Any, **_options: Any) -> Proxy:
        start, step = (0, 1) if len(bounds) == 1 else (bounds[0], bounds[2] if len(bounds) > 2 else 1)
        dtype = self.result.dtype
        wide = torch.int64 if not dtype.is_floating_point else torch.float32
        steps = self.write("Iota", 0, shape=tuple(self.result.shape), dtype=wide)
        if step != 1:
            steps = self.write("Mul", steps, self.constant(step, wide))
        if start != 0:
            steps = self.write("Add", steps, self.constant(start, wide))
        return self.convert(steps, dtype)

    @register_conversion(aten.flip.default)
    def flip(self, x: Proxy, dims: Sequence[int]) -> Proxy:
        axes = [dim % len(self.shape(x)) for dim in dims]
        return self.write("Reverse", x, axes, shape=self.shape(x), dtype=self.dtype(x)) if axes else x

    @register_conversion(aten.constant_pad_nd.default)
    def pad(self, x: Proxy, pads: Sequence[int], value: float = 0) -> Proxy:
        rank = len(self.shape(x))
        low, high = [0] * rank, [0] * rank
        for number in range(len(pads) // 2):
            low[rank - 1 - number], high[rank - 1 - number] = pads[2 * number : 2 * number + 2]
        if not any((*low, *high)):
            return x
        return self.write("Pad", x, self.constant(value, self.dtype(x)), 0, low, high, [0] * rank)
