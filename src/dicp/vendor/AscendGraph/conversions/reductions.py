"""Sums, products, extremes, positions, scans, sorting, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.vendor.AscendGraph.conversions.writing import AscendWriter

aten = torch.ops.aten


class ReductionConversions(AscendWriter):
    def reduced(self, name: str, x: Proxy, dims: Any, keepdim: bool) -> Proxy:
        axes = self.axes(x, dims)
        return self.ge(name, x, axes, keep_dims=keepdim) if axes else x

    @register_conversion([aten.sum.default, aten.sum.dim_IntList])
    def sum(
        self,
        x: Proxy,
        dims: Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Proxy:
        wanted = self.result.dtype
        return self.in_float32(lambda x: self.reduced("ReduceSum", x, dims, keepdim), self.cast(x, wanted))  # type: ignore[no-any-return]

    @register_conversion([aten.mean.default, aten.mean.dim])
    def mean(
        self,
        x: Proxy,
        dims: Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Proxy:
        wanted = self.result.dtype
        return self.in_float32(lambda x: self.reduced("ReduceMean", x, dims, keepdim), self.cast(x, wanted))  # type: ignore[no-any-return]

    @register_conversion([aten.prod.default, aten.prod.dim_int])
    def prod(
        self, x: Proxy, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
    ) -> Proxy:
        wanted = self.result.dtype
        return self.in_float32(lambda x: self.reduced("ReduceProd", x, dim, keepdim), self.cast(x, wanted))  # type: ignore[no-any-return]

    @register_conversion([aten.any, aten.all])
    def truth_of(self, x: Proxy, dims: Any = None, keepdim: bool = False) -> Proxy:
        assert self.node is not None
        name = "ReduceAny" if self.node.target.overloadpacket is aten.any else "ReduceAll"  # type: ignore[union-attr]
        found = self.reduced(name, self.cast(x, torch.bool), dims, keepdim)
        return self.cast(found, self.result.dtype)

    @register_conversion([aten.max.default, aten.min.default])
    def extreme_of_all(self, x: Proxy) -> Proxy:
        return self.reduced(self._extreme(aten.max), x, None, False)

    @register_conversion([aten.max.dim, aten.min.dim])
    def extreme_and_place(self, x: Proxy, dim: int, keepdim: bool = False) -> list[Proxy]:
        if not self.rank(x):
            return [x, self.filled([], 0, torch.int64)]
        largest = self._extreme(aten.max) == "ReduceMax"
        return [
            self.reduced(self._extreme(aten.max), x, dim, keepdim),
            self.place_of_extreme(x, self.axis(x, dim), keepdim, largest),
        ]

    @register_conversion([aten.argmax, aten.argmin])
    def arg_extreme(self, x: Proxy, dim: int | None = None, keepdim: bool = False) -> Proxy:
        if not self.rank(x):
            return self.filled([], 0, torch.int64)
        largest = self._extreme(aten.argmax) == "ReduceMax"
        if dim is not None:
            return self.place_of_extreme(x, self.axis(x, dim), keepdim, largest)
        found = self.place_of_extreme(self.reshape(x, [-1]), 0, False, largest)
        return self.reshape(found, self.result.shape) if keepdim else found

    def place_of_extreme(self, x: Proxy, axis: int, keepdim: bool, largest: bool) -> Proxy:
        if not self.dtype(x).is_floating_point and self.dtype(x) not in (torch.int32, torch.int64):
            x = self.cast(x, torch.int32)
        found = self.ge("ArgMaxV2" if largest else "ArgMin", x, axis, dtype=torch.int64)
        return self.ge("Unsqueeze", found, axes=[axis]) if keepdim else found  # type: ignore[no-any-return]

    def _extreme(self, larger: Any) -> str:
        assert self.node is not None
        return "ReduceMax" if self.node.target.overloadpacket is larger else "ReduceMin"  # type: ignore[union-attr]

    @register_conversion([aten.cumsum, aten.cumprod])
    def scan(self, x: Proxy, dim: int, dtype: torch.dtype | None = None) -> Proxy:
        assert self.node is not None
        name = "Cumsum" if self.node.target.overloadpacket is aten.cumsum else "Cumprod"  # type: ignore[union-attr]
        x = self.cast(x, self.result.dtype)
        if not self.rank(x):
            return x
        return self.in_float32(lambda x: self.ge(name, x, self.axis(x, dim)), x)  # type: ignore[no-any-return]

    @register_conversion(aten.topk)
    def topk(self, x: Proxy, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Proxy]:
        if not self.rank(x):
            return [x, self.filled([], 0, torch.int64)]
        values, places = self.ge("TopKV2", x, k, sorted=sorted, dim=self.axis(x, dim), largest=largest)
        return [values, self.cast(places, torch.int64)]

    @register_conversion([aten.sort.default, aten.sort.stable])
    def sort(
        self, x: Proxy, dim: int = -1, descending: bool = False, *, stable: bool | None = False
    ) -> list[Proxy]:
        if not self.rank(x):
            return [x, self.filled([], 0, torch.int64)]
        values, places = self.ge(
            "Sort", x, axis=self.axis(x, dim), descending=descending, stable=bool(stable)
        )
        return [values, self.cast(places, torch.int64)]

    @register_conversion([aten.amax, aten.amin])
    def extreme(self, x: Proxy, dims: Sequence[int] = (), keepdim: bool = False) -> Proxy:
        assert self.node is not None
        name = "ReduceMax" if self.node.target is aten.amax.default else "ReduceMin"
        return self.reduced(name, x, dims, keepdim)

    @register_conversion(aten._softmax)
    def softmax(self, x: Proxy, dim: int, half_to_float: bool) -> Proxy:
        x = self.cast(x, self.result.dtype)
        return self.in_float32(lambda x: self.ge("SoftmaxV2", x, axes=[self.axis(x, dim)]), x)  # type: ignore[no-any-return]

    @register_conversion(aten._log_softmax)
    def log_softmax(self, x: Proxy, dim: int, half_to_float: bool) -> Proxy:
        x = self.cast(x, self.result.dtype)
        return self.in_float32(lambda x: self.ge("LogSoftmaxV2", x, axes=[self.axis(x, dim)]), x)  # type: ignore[no-any-return]
