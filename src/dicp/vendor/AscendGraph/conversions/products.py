"""Matrix products and convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.vendor.AscendGraph.conversions.writing import AscendWriter

aten = torch.ops.aten


class ProductConversions(AscendWriter):
    @register_conversion(aten.mm)
    def mm(self, x: Proxy, y: Proxy) -> Proxy:
        return self.ge("MatMulV2", x, y)  # type: ignore[no-any-return]

    @register_conversion(aten.bmm)
    def bmm(self, x: Proxy, y: Proxy) -> Proxy:
        return self.ge("BatchMatMul", x, y)  # type: ignore[no-any-return]

    @register_conversion(aten.addmm)
    def addmm(self, bias: Proxy, x: Proxy, y: Proxy, *, beta: Any = 1, alpha: Any = 1) -> Proxy:
        if (beta, alpha) == (1, 1) and self.rank(bias) == 1:
            return self.ge("MatMulV2", x, y, bias)  # type: ignore[no-any-return]
        return self._sum_in_float32("MatMulV2", bias, x, y, beta, alpha)

    @register_conversion(aten.baddbmm)
    def baddbmm(self, bias: Proxy, x: Proxy, y: Proxy, *, beta: Any = 1, alpha: Any = 1) -> Proxy:
        return self._sum_in_float32("BatchMatMul", bias, x, y, beta, alpha)

    def _sum_in_float32(self, name: str, bias: Proxy, x: Proxy, y: Proxy, beta: Any, alpha: Any) -> Proxy:
        def summed(bias: Proxy, x: Proxy, y: Proxy) -> Proxy:
            return self._sum(name, bias, x, y, beta, alpha)

        return self.in_float32(summed, bias, x, y)  # type: ignore[no-any-return]

    def _sum(self, name: str, bias: Proxy, x: Proxy, y: Proxy, beta: Any, alpha: Any) -> Proxy:
        product = self.ge(name, x, y)
        if alpha != 1:
            product = self.ge("Mul", product, self.scalar_like(alpha, product))
        if beta == 0:
            return self.broadcast(product, self.result.shape)
        if beta != 1:
            bias = self.ge("Mul", bias, self.scalar_like(beta, bias))
        return self.ge("Add", product, bias)  # type: ignore[no-any-return]
