"""Functions of one element each, with operands broadcast to each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.errors import UnsupportedError
from dicp.vendor.TopsGraph.conversions.base import HALVES, BuilderConversions, Value

__all__ = ["TopsPointwise"]

aten = torch.ops.aten

# Of the builder, for floating elements.
_FLOATING = {
    aten.exp.default: "Exp",
    aten.log.default: "Log",
    aten.sqrt.default: "Sqrt",
    aten.rsqrt.default: "Rsqrt",
    aten.reciprocal.default: "Reciprocal",
    aten.sin.default: "Sin",
    aten.cos.default: "Cos",
    aten.tanh.default: "Tanh",
    aten.sigmoid.default: "Sigmoid",
    aten.erf.default: "Erf",
    aten.atan.default: "Atan",
    aten.silu.default: "Swish",
    aten.hardswish.default: "HardSwish",
}
# For elements of any kind.
_ANY = {
    aten.abs.default: "Abs",
    aten.neg.default: "Neg",
    aten.relu.default: "Relu",
    aten.sign.default: "Sign",
    aten.square.default: "Square",
    aten.bitwise_not.default: "Not",
}
_ARITHMETIC = {
    aten.mul.Tensor: "Mul",
    aten.mul.Scalar: "Mul",
    aten.maximum.default: "Max",
    aten.minimum.default: "Min",
    aten.pow.Tensor_Tensor: "Pow",
    aten.bitwise_and.Tensor: "And",
    aten.bitwise_and.Scalar: "And",
    aten.bitwise_or.Tensor: "Or",
    aten.bitwise_or.Scalar: "Or",
}
_COMPARISONS = {
    aten.eq.Tensor: "Equal",
    aten.eq.Scalar: "Equal",
    aten.ne.Tensor: "NotEqual",
    aten.ne.Scalar: "NotEqual",
    aten.lt.Tensor: "Less",
    aten.lt.Scalar: "Less",
    aten.le.Tensor: "LessEqual",
    aten.le.Scalar: "LessEqual",
    aten.gt.Tensor: "Greater",
    aten.gt.Scalar: "Greater",
    aten.ge.Tensor: "GreaterEqual",
    aten.ge.Scalar: "GreaterEqual",
}
_LOGICAL = {
    aten.logical_and.default: "And",
    aten.logical_or.default: "Or",
    aten.logical_xor.default: "NotEqual",
}


class TopsPointwise(BuilderConversions):
    """Arithmetic, comparisons, functions of one variable."""

    @property
    def target(self) -> Any:
        assert self.node is not None
        return self.node.target

    def compute(self, name: str, x: Value, y: Value, dtype: torch.dtype) -> Proxy:
        """An operator of two operands; a number that a half dtype cannot hold is not rounded before it is used."""
        numbers = [value for value in (x, y) if not isinstance(value, Proxy)]
        if dtype in HALVES and any(_is_rounded(number, dtype) for number in numbers):
            return self.convert(self.compute(name, x, y, torch.float32), dtype)
        return self.write(name, self.operand(x, dtype), self.operand(y, dtype))

    @register_conversion(tuple(_FLOATING))
    def floating_function(self, x: Proxy) -> Proxy:
        given = x if self.dtype(x).is_floating_point else self.convert(x, self.result.dtype)
        return self.write(_FLOATING[self.target], given)

    @register_conversion(tuple(_ANY))
    def any_function(self, x: Proxy) -> Proxy:
        return self.write(_ANY[self.target], x)

    @register_conversion(tuple(_ARITHMETIC))
    def arithmetic(self, x: Value, y: Value) -> Proxy:
        return self.compute(_ARITHMETIC[self.target], x, y, self.result.dtype)

    @register_conversion([aten.add.Tensor, aten.add.Scalar])
    def add(self, x: Value, y: Value, alpha: float = 1) -> Proxy:
        return self.sum_with(x, y, alpha, "Add")

    @register_conversion([aten.sub.Tensor, aten.sub.Scalar])
    def sub(self, x: Value, y: Value, alpha: float = 1) -> Proxy:
        return self.sum_with(x, y, alpha, "Sub")

    @register_conversion([aten.rsub.Tensor, aten.rsub.Scalar])
    def rsub(self, x: Value, y: Value, alpha: float = 1) -> Proxy:
        return self.sum_with(y, x, alpha, "Sub")

    def sum_with(self, x: Value, y: Value, alpha: float, name: str) -> Proxy:
        dtype = self.result.dtype
        if dtype == torch.bool:
            return self.write("Or", self.operand(x, dtype), self.operand(y, dtype))
        if alpha == 1:
            return self.compute(name, x, y, dtype)
        wide = torch.float32 if dtype in HALVES else dtype
        scaled = self.write("Mul", self.operand(y, wide), self.constant(alpha, wide))
        return self.convert(self.write(name, self.operand(x, wide), scaled), dtype)

    @register_conversion([aten.div.Tensor, aten.div.Scalar])
    def div(self, x: Value, y: Value) -> Proxy:
        return self.compute("Div", x, y, self.result.dtype)

    @register_conversion([aten.div.Tensor_mode, aten.div.Scalar_mode])
    def div_rounded(self, x: Value, y: Value, rounding_mode: str | None = None) -> Proxy:
        dtype = self.result.dtype
        wide = torch.float32 if dtype in HALVES else dtype
        left, right = self.operand(x, wide), self.operand(y, wide)
        quotient = self.write("Div", left, right)
        if rounding_mode == "trunc":
            quotient = self.truncated(quotient)
        elif rounding_mode == "floor":
            quotient = self.floor_divided(left, right, quotient)
        return self.convert(quotient, dtype)

    @register_conversion(aten.floor_divide.default)
    def floor_divide(self, x: Value, y: Value) -> Proxy:
        return self.div_rounded(x, y, "floor")

    def truncated(self, x: Proxy) -> Proxy:
        """Towards zero; whole numbers are."""
        if not self.dtype(x).is_floating_point:
            return x
        zero = self.constant(0, self.dtype(x))
        down = self.write("Floor", x)
        up = self.write("Neg", self.write("Floor", self.write("Neg", x)))
        return self.choose(self.write("Less", x, zero), up, down)

    def floor_divided(self, x: Proxy, y: Proxy, quotient: Proxy) -> Proxy:
        """Of whole numbers the builder's quotient is rounded towards zero: one less where signs differ and something is left."""
        if self.dtype(x).is_floating_point:
            raise UnsupportedError(
                "a floored quotient of floating numbers: the builder's quotient is rounded before"
            )
        zero, one = (self.constant(value, self.dtype(x)) for value in (0, 1))
        rest = self.write("Sub", x, self.write("Mul", quotient, y))
        unlike = self.write("NotEqual", self.write("Less", rest, zero), self.write("Less", y, zero))
        less = self.write("And", self.write("NotEqual", rest, zero), unlike)
        return self.choose(less, self.write("Sub", quotient, one), quotient)

    @register_conversion([aten.remainder.Tensor, aten.remainder.Scalar])
    def remainder(self, x: Value, y: Value) -> Proxy:
        dtype = self.result.dtype
        if dtype.is_floating_point:
            raise UnsupportedError("a remainder of floating numbers: the builder's quotient is rounded")
        return self.remainder_of(self.operand(x, dtype), self.operand(y, dtype))

    def remainder_of(self, x: Proxy, y: Proxy) -> Proxy:
        if self.dtype(x).is_floating_point:
            raise UnsupportedError("a remainder of floating numbers: the builder's quotient is rounded")
        quotient = self.floor_divided(x, y, self.write("Div", x, y))
        return self.write("Sub", x, self.write("Mul", quotient, y))

    @register_conversion([aten.fmod.Tensor, aten.fmod.Scalar])
    def fmod(self, x: Value, y: Value) -> Proxy:
        dtype = self.result.dtype
        if dtype.is_floating_point:
            raise UnsupportedError("a remainder of floating numbers: the builder's quotient is rounded")
        left, right = self.operand(x, dtype), self.operand(y, dtype)
        return self.write("Sub", left, self.write("Mul", self.write("Div", left, right), right))

    @register_conversion(aten.pow.Tensor_Scalar)
    def pow_number(self, x: Proxy, exponent: float) -> Proxy:
        if exponent == 2:
            return self.write("Square", self.convert(x, self.result.dtype))
        return self.compute("Pow", x, exponent, self.result.dtype)

    @register_conversion(aten.pow.Scalar)
    def pow_of_number(self, base: float, x: Proxy) -> Proxy:
        return self.compute("Pow", base, x, self.result.dtype)

    @register_conversion(tuple(_COMPARISONS))
    def comparison(self, x: Value, y: Value) -> Proxy:
        dtype = self.common_dtype(x, y)
        if dtype == torch.bool:
            dtype = torch.uint8
        numbers = [value for value in (x, y) if not isinstance(value, Proxy)]
        if dtype in HALVES and any(_is_rounded(number, dtype) for number in numbers):
            dtype = torch.float32
        return self.write(_COMPARISONS[self.target], self.operand(x, dtype), self.operand(y, dtype))

    @register_conversion(tuple(_LOGICAL))
    def logical(self, x: Proxy, y: Proxy) -> Proxy:
        left, right = self.convert(x, torch.bool), self.convert(y, torch.bool)
        return self.write(_LOGICAL[self.target], left, right)

    @register_conversion(aten.logical_not.default)
    def logical_not(self, x: Proxy) -> Proxy:
        return self.write("Not", self.convert(x, torch.bool))

    @register_conversion([aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar])
    def bitwise_xor(self, x: Value, y: Value) -> Proxy:
        dtype = self.result.dtype
        left, right = self.operand(x, dtype), self.operand(y, dtype)
        either = self.write("Or", left, right)
        return self.write("And", either, self.write("Not", self.write("And", left, right)))

    @register_conversion(aten.floor.default)
    def floor(self, x: Proxy) -> Proxy:
        return self.write("Floor", x) if self.dtype(x).is_floating_point else x

    @register_conversion(aten.ceil.default)
    def ceil(self, x: Proxy) -> Proxy:
        if not self.dtype(x).is_floating_point:
            return x
        return self.write("Neg", self.write("Floor", self.write("Neg", x)))

    @register_conversion(aten.trunc.default)
    def trunc(self, x: Proxy) -> Proxy:
        return self.truncated(x)

    @register_conversion(aten.round.default)
    def round(self, x: Proxy) -> Proxy:
        """Halves go to even numbers."""
        if not self.dtype(x).is_floating_point:
            return x
        half, one, two = (self.constant(value, self.dtype(x)) for value in (0.5, 1, 2))
        down = self.write("Floor", x)
        rest = self.write("Sub", x, down)
        even = self.write("Mul", self.write("Floor", self.write("Div", down, two)), two)
        is_odd = self.write("NotEqual", down, even)
        up = self.write(
            "Or",
            self.write("Greater", rest, half),
            self.write("And", self.write("Equal", rest, half), is_odd),
        )
        return self.choose(up, self.write("Add", down, one), down)

    @register_conversion([aten.log2.default, aten.log10.default])
    def log_of_base(self, x: Proxy) -> Proxy:
        base = 2.0 if self.target is aten.log2.default else 10.0
        return self.in_wide(
            x, lambda x: self.write("Mul", self.write("Log", x), self.number(1 / math.log(base)))
        )

    @register_conversion(aten.tan.default)
    def tan(self, x: Proxy) -> Proxy:
        return self.in_wide(x, lambda x: self.write("Div", self.write("Sin", x), self.write("Cos", x)))

    @register_conversion(aten.cosh.default)
    def cosh(self, x: Proxy) -> Proxy:
        def halves(x: Proxy) -> Proxy:
            parts = [self.write("Exp", part) for part in (x, self.write("Neg", x))]
            return self.write("Mul", self.write("Add", *parts), self.number(0.5))

        return self.in_wide(x, halves)

    @register_conversion(aten.isnan.default)
    def isnan(self, x: Proxy) -> Proxy:
        return self.write("NotEqual", x, x)

    @register_conversion(aten.isinf.default)
    def isinf(self, x: Proxy) -> Proxy:
        if not self.dtype(x).is_floating_point:
            return self.constant(False, torch.bool, self.shape(x))
        return self.write("Equal", self.write("Abs", x), self.constant(math.inf, self.dtype(x)))

    @register_conversion(aten.isfinite.default)
    def isfinite(self, x: Proxy) -> Proxy:
        if not self.dtype(x).is_floating_point:
            return self.constant(True, torch.bool, self.shape(x))
        return self.write("IsFinite", x)

    def choose(self, condition: Proxy, x: Value, y: Value) -> Proxy:
        """The builder's Select, which does not broadcast; results have the dtype of a tensor among the values."""
        dtype = next(self.dtype(value) for value in (x, y) if isinstance(value, Proxy))
        parts = [self.operand(value, dtype) for value in (x, y)]
        shape = torch.broadcast_shapes(self.shape(condition), *(self.shape(part) for part in parts))
        chosen = [self.broadcast_to(part, shape) for part in (self.convert(condition, torch.bool), *parts)]
        return self.write("Select", *chosen)

    @register_conversion([aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf])
    def where(self, condition: Proxy, x: Value, y: Value) -> Proxy:
        dtype = self.result.dtype
        return self.choose(condition, self.operand(x, dtype), self.operand(y, dtype))

    @register_conversion([aten.masked_fill.Scalar, aten.masked_fill.Tensor])
    def masked_fill(self, x: Proxy, mask: Proxy, value: Value) -> Proxy:
        return self.choose(mask, self.operand(value, self.dtype(x)), x)

    @register_conversion([aten.clamp.default, aten.clamp.Tensor])
    def clamp(self, x: Proxy, low: Value | None = None, high: Value | None = None) -> Proxy:
        dtype = self.result.dtype
        found = self.convert(x, dtype)
        found = found if low is None else self.compute("Max", found, low, dtype)
        return found if high is None else self.compute("Min", found, high, dtype)

    @register_conversion([aten.clamp_min.default, aten.clamp_min.Tensor])
    def clamp_min(self, x: Proxy, low: Value) -> Proxy:
        return self.clamp(x, low)

    @register_conversion([aten.clamp_max.default, aten.clamp_max.Tensor])
    def clamp_max(self, x: Proxy, high: Value) -> Proxy:
        return self.clamp(x, None, high)

    @register_conversion(aten._to_copy.default)
    def to_copy(self, x: Proxy, **_options: Any) -> Proxy:
        return self.convert(x, self.result.dtype)

    @register_conversion(aten.clone.default)
    def clone(self, x: Proxy, memory_format: Any = None) -> Proxy:
        return x

    @register_conversion([aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default])
    def alias(self, x: Proxy) -> Proxy:
        return x

    @register_conversion(aten.gelu.default)
    def gelu(self, x: Proxy, approximate: str = "none") -> Proxy:
        return self.write("Gelu", x, approximate == "tanh")

    @register_conversion(aten.leaky_relu.default)
    def leaky_relu(self, x: Proxy, slope: float = 0.01) -> Proxy:
        return self.write("LeakyRelu", x, slope)

    def in_wide(self, x: Proxy, function: Callable[[Proxy], Proxy]) -> Proxy:
        """Several operators of which only the last result is rounded."""
        return self.convert(function(self.floating(x)), self.result.dtype)

    def number(self, value: float) -> Proxy:
        return self.constant(value, torch.float32)


def _is_rounded(number: float, dtype: torch.dtype) -> bool:
    held = float(torch.tensor(number, dtype=dtype))
    return held != float(number) and not math.isnan(float(number))
