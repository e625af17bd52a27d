"""Operators of one element each, and the numbers of Python among their arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.errors import UnsupportedError
from dicp.vendor.AscendGraph.conversions.writing import HALVES, AscendWriter

aten = torch.ops.aten

_UNARY: dict[Any, str] = {
    aten.abs: "Abs",
    aten.acos: "Acos",
    aten.acosh: "Acosh",
    aten.asin: "Asin",
    aten.asinh: "Asinh",
    aten.atan: "Atan",
    aten.atanh: "Atanh",
    aten.ceil: "Ceil",
    aten.cos: "Cos",
    aten.cosh: "Cosh",
    aten.erf: "Erf",
    aten.erfc: "Erfc",
    aten.exp: "Exp",
    aten.expm1: "Expm1",
    aten.floor: "Floor",
    aten.log: "Log",
    aten.log1p: "Log1p",
    aten.neg: "Neg",
    aten.reciprocal: "Reciprocal",
    aten.relu: "Relu",
    aten.round.default: "Round",
    aten.rsqrt: "Rsqrt",
    aten.sigmoid: "Sigmoid",
    aten.sign: "Sign",
    aten.sin: "Sin",
    aten.sinh: "Sinh",
    aten.sqrt: "Sqrt",
    aten.square: "Square",
    aten.tan: "Tan",
    aten.tanh: "Tanh",
    aten.trunc: "Trunc",
}
_WHOLE_ALREADY = (aten.ceil, aten.floor, aten.round, aten.trunc)
_TESTS = {aten.isnan: "IsNan", aten.isinf: "IsInf"}
_COMPARISONS = {
    aten.eq: "Equal",
    aten.ge: "GreaterEqual",
    aten.gt: "Greater",
    aten.le: "LessEqual",
    aten.lt: "Less",
    aten.ne: "NotEqual",
}
_BINARY = {
    aten.atan2: "Atan2",
    aten.fmod: "TruncateMod",
    aten.maximum: "Maximum",
    aten.minimum: "Minimum",
    aten.mul: "Mul",
    aten.pow: "Pow",
    aten.remainder: "FloorMod",
    aten.xlogy: "Xlogy",
}
_BITWISE = {
    aten.bitwise_and: ("BitwiseAnd", "LogicalAnd"),
    aten.bitwise_or: ("BitwiseOr", "LogicalOr"),
    aten.bitwise_xor: ("BitwiseXor", "NotEqual"),
}
_SHIFTS = {aten.bitwise_left_shift: "LeftShift", aten.bitwise_right_shift: "RightShift"}
_LOGICAL = {aten.logical_and: "LogicalAnd", aten.logical_or: "LogicalOr", aten.logical_xor: "NotEqual"}


class ElementwiseConversions(AscendWriter):
    def packet(self) -> Any:
        """The operator that is being converted, without its overload."""
        assert self.node is not None
        target: Any = self.node.target
        return target.overloadpacket

    def promoted(self, *operands: Any, dtype: torch.dtype | None = None) -> list[Proxy]:
        """The operands in one dtype: that of the result, or the one that torch computes in.

        In half precision a number that has no exact value there is computed with in float32, as PyTorch does.
        """
        common = dtype or self.common_dtype(*operands)
        if common in HALVES and any(_is_inexact(x, common) for x in operands):
            common = torch.float32
        return [self.cast(x, common) if isinstance(x, Proxy) else self.constant(x, common) for x in operands]

    def common_dtype(self, *operands: Any) -> torch.dtype:
        values = [x.node.meta["val"] if isinstance(x, Proxy) else x for x in operands]
        values = [1 if isinstance(value, torch.SymInt) else value for value in values]
        common = values[0]
        for value in values[1:]:
            dtype = torch.result_type(common, value)
            # A tensor without dimensions counts for less than one with them.
            rank = max(getattr(v, "ndim", 0) for v in (common, value))
            common = torch.empty((1,) * rank, dtype=dtype, device="meta")
        dtype_found: torch.dtype = common.dtype
        return dtype_found

    def to_result(self, x: Proxy) -> Proxy:
        return self.cast(x, self.result.dtype)

    @register_conversion(list(_UNARY))
    def unary(self, x: Proxy) -> Proxy:
        assert self.node is not None
        name = _UNARY.get(self.node.target) or _UNARY[self.packet()]
        if self.packet() in _WHOLE_ALREADY and not self.dtype(x).is_floating_point:
            return self.ge("Identity", x)  # type: ignore[no-any-return]
        if self.result.dtype.is_floating_point:
            x = self.cast(x, self.result.dtype)
        return self.ge(name, x)  # type: ignore[no-any-return]

    @register_conversion(list(_TESTS))
    def test(self, x: Proxy) -> Proxy:
        if not self.dtype(x).is_floating_point:
            return self.filled(self.shape(x), False, torch.bool)
        # A half value that becomes infinite in float32 there is none of.
        return self.ge(_TESTS[self.packet()], x)  # type: ignore[no-any-return]

    @register_conversion(aten.exp2)
    def exp2(self, x: Proxy) -> Proxy:
        return self.ge("Exp", self.to_result(x), base=2.0)  # type: ignore[no-any-return]

    @register_conversion([aten.log2, aten.log10])
    def log_of_base(self, x: Proxy) -> Proxy:
        base = 2.0 if self.packet() is aten.log2 else 10.0
        return self.ge("Log", self.to_result(x), base=base)  # type: ignore[no-any-return]

    @register_conversion(aten.frac)
    def frac(self, x: Proxy) -> Proxy:
        return self.ge("Sub", x, self.ge("Trunc", x))  # type: ignore[no-any-return]

    @register_conversion(list(_BINARY))
    def binary(self, x: Any, y: Any) -> Proxy:
        return self.to_result(self.ge(_BINARY[self.packet()], *self.promoted(x, y)))

    @register_conversion([aten.add, aten.sub, aten.rsub])
    def add(self, x: Any, y: Any, alpha: Any = 1) -> Proxy:
        if self.packet() is aten.rsub:
            x, y = y, x
            if alpha != 1:
                raise UnsupportedError("rsub with alpha")
        a, b = self.promoted(x, y) if alpha == 1 else self.promoted(x, y, alpha)[:2]
        if alpha != 1:
            b = self.ge("Mul", b, self.constant(alpha, self.dtype(b)))
        if self.packet() is aten.add and self.dtype(a) == torch.bool:
            return self.ge("LogicalOr", a, b)  # type: ignore[no-any-return]
        return self.to_result(self.ge("Add" if self.packet() is aten.add else "Sub", a, b))

    @register_conversion(aten.div)
    def div(self, x: Any, y: Any, rounding_mode: str | None = None) -> Proxy:
        if rounding_mode == "floor":
            return self.floor_divide(x, y)
        if rounding_mode == "trunc":
            a, b = self.promoted(x, y)
            if self.dtype(a).is_floating_point:
                return self.to_result(self.ge("Trunc", self.ge("RealDiv", a, b)))
            return self.to_result(self.ge("TruncateDiv", a, b))
        common = self.common_dtype(x, y)
        wanted = common if common.is_floating_point else self.result.dtype
        return self.to_result(self.ge("RealDiv", *self.promoted(x, y, dtype=wanted)))

    @register_conversion(aten.floor_divide)
    def floor_divide(self, x: Any, y: Any) -> Proxy:
        return self.to_result(self.ge("FloorDiv", *self.promoted(x, y)))

    @register_conversion(list(_COMPARISONS))
    def comparison(self, x: Any, y: Any) -> Proxy:
        common = self.common_dtype(x, y)
        return self.ge(_COMPARISONS[self.packet()], *self._in(common, x, y))  # type: ignore[no-any-return]

    def _in(self, dtype: torch.dtype, *operands: Any) -> list[Proxy]:
        return [self.cast(x, dtype) if isinstance(x, Proxy) else self.constant(x, dtype) for x in operands]

    @register_conversion(list(_BITWISE))
    def bitwise(self, x: Any, y: Any) -> Proxy:
        common = self.common_dtype(x, y)
        integers, booleans = _BITWISE[self.packet()]
        return self.ge(booleans if common == torch.bool else integers, *self._in(common, x, y))  # type: ignore[no-any-return]

    @register_conversion(list(_SHIFTS))
    def shift(self, x: Any, y: Any) -> Proxy:
        return self.ge(_SHIFTS[self.packet()], *self.promoted(x, y))  # type: ignore[no-any-return]

    @register_conversion(list(_LOGICAL))
    def logical(self, x: Proxy, y: Proxy) -> Proxy:
        return self.ge(_LOGICAL[self.packet()], self.truth(x), self.truth(y))  # type: ignore[no-any-return]

    def truth(self, x: Proxy) -> Proxy:
        """Whether values are not zero."""
        if self.dtype(x) == torch.bool:
            return x
        return self.ge("NotEqual", x, self.scalar_like(0, x))  # type: ignore[no-any-return]

    @register_conversion([aten.logical_not, aten.bitwise_not])
    def invert(self, x: Proxy) -> Proxy:
        if self.packet() is aten.logical_not:
            return self.ge("LogicalNot", self.truth(x))  # type: ignore[no-any-return]
        return self.ge("LogicalNot" if self.dtype(x) == torch.bool else "Invert", x)  # type: ignore[no-any-return]

    @register_conversion(aten.where.self)
    def where(self, condition: Proxy, x: Proxy, y: Proxy) -> Proxy:
        return self.ge("SelectV2", condition, *self._in(self.result.dtype, x, y))  # type: ignore[no-any-return]

    @register_conversion(aten.masked_fill)
    def masked_fill(self, x: Proxy, mask: Proxy, value: Any) -> Proxy:
        return self.ge("MaskedFill", x, mask, *self._in(self.dtype(x), value))  # type: ignore[no-any-return]

    @register_conversion([aten.clamp, aten.clamp_min, aten.clamp_max])
    def clamp(self, x: Proxy, low: Any = None, high: Any = None) -> Proxy:
        if self.packet() is aten.clamp_max:
            low, high = None, low
        bounds = [bound for bound in (low, high) if bound is not None]
        [x, *_] = self.promoted(x, *bounds)
        if low is not None:
            x = self.ge("Maximum", x, *self._in(self.dtype(x), low))
        if high is not None:
            x = self.ge("Minimum", x, *self._in(self.dtype(x), high))
        return self.to_result(x)

    @register_conversion(aten._to_copy)
    def to_copy(self, x: Proxy, dtype: torch.dtype | None = None, **where: Any) -> Proxy:
        if where.get("layout") not in (None, torch.strided) or where.get("device") not in (None, self.device):
            raise UnsupportedError(f"a copy to another device or layout: {where}")
        return self.cast(x, dtype or self.dtype(x))


def _is_inexact(x: Any, dtype: torch.dtype) -> bool:
    if isinstance(x, torch.SymInt):
        return True
    return isinstance(x, int | float) and float(torch.tensor(x, dtype=torch.float64).to(dtype)) != float(x)
