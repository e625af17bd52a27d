"""Sums, extremes, positions, softmax."""

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
