"""Recipes of arithmetic, comparisons, bits and mathematical functions."""

from __future__ import annotations

import math

import torch

from dicp.loops.primitives import BITS, FLOATS, INTEGERS, NUMBERS, BodyBuilder, Number, Value
from dicp.loops.recipes import Operand, PromotionKind, Recipes

__all__ = ["RECIPES"]

RECIPES = Recipes()
TO_FLOAT, TO_BOOL = PromotionKind.INT_TO_FLOAT, PromotionKind.ALWAYS_BOOL


def _both(*names: str) -> tuple[str, ...]:
    return tuple(f"{namespace}.{name}" for name in names for namespace in ("aten", "prims"))


for _name in [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sigmoid",
    "erf",
    "erfc",
    "lgamma",
    "digamma",
]:
    RECIPES.primitive(_name, kind=TO_FLOAT)
RECIPES.primitive("erfinv", "aten.erfinv", "prims.erf_inv", kind=TO_FLOAT)
RECIPES.primitive("atan2", kind=TO_FLOAT)
RECIPES.primitive("hypot", computes=FLOATS)
RECIPES.primitive("nextafter", computes=FLOATS, stores=FLOATS)  # of a 16-bit float it is another number
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    RECIPES.primitive(_name, kind=TO_BOOL)
RECIPES.primitive("neg", computes=NUMBERS)
RECIPES.primitive("fmod", computes=NUMBERS)
RECIPES.primitive("remainder", computes=NUMBERS)
RECIPES.primitive("maximum", *_both("maximum"), "aten.max.other")
RECIPES.primitive("minimum", *_both("minimum"), "aten.min.other")
RECIPES.primitive("gcd", computes=INTEGERS)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    RECIPES.primitive(_name, *_both(_name), f"aten.__{_name.removeprefix('bitwise_')}__", computes=BITS)
RECIPES.primitive("bitwise_not", computes=BITS)
RECIPES.primitive(
    "shift_left", "aten.bitwise_left_shift", "aten.__lshift__", "prims.shift_left", computes=INTEGERS
)
RECIPES.primitive(
    "shift_right",
    "aten.bitwise_right_shift",
    "aten.__rshift__",
    "prims.shift_right_arithmetic",
    computes=INTEGERS,
)


@RECIPES.define(*_both("add"), opmath=True)
def _add(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand, alpha: Operand = 1) -> Value:
    if dtype is torch.bool:
        return b.op(
            "bitwise_or", self, b.op("bitwise_and", other, _true(alpha)) if _is_sized(other, alpha) else other
        )
    return b.op("add", self, _scaled(b, other, alpha))


@RECIPES.define(*_both("sub"), computes=NUMBERS, opmath=True)
def _sub(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand, alpha: Operand = 1) -> Value:
    return b.op("sub", self, _scaled(b, other, alpha))


@RECIPES.define("rsub", computes=NUMBERS, opmath=True)
def _rsub(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand, alpha: Operand = 1) -> Value:
    return b.op("sub", other, _scaled(b, self, alpha))


def _scaled(b: BodyBuilder, value: Operand, alpha: Operand) -> Operand:
    if not isinstance(alpha, Value) and alpha == 1:
        return value
    return (
        b.op("mul", value, alpha) if isinstance(value, Value) or isinstance(alpha, Value) else value * alpha
    )


def _is_sized(other: Operand, alpha: Operand) -> bool:
    return isinstance(other, Value) and (isinstance(alpha, Value) or not alpha)


def _true(alpha: Operand) -> Operand:
    return alpha if isinstance(alpha, Value) else bool(alpha)


@RECIPES.define(*_both("mul"), opmath=True)
def _mul(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand) -> Value:
    return b.op("bitwise_and" if dtype is torch.bool else "mul", self, other)


@RECIPES.define("div.Tensor", "div.Scalar", "true_divide", kind=TO_FLOAT, opmath=True)
def _div(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand) -> Value:
    return b.op("div", self, other)


@RECIPES.define("prims.div", computes=NUMBERS, opmath=True)
def _prims_div(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand) -> Value:
    return b.op("div" if dtype in FLOATS else "trunc_div", self, other)


@RECIPES.define("div.Tensor_mode", "div.Scalar_mode", computes=NUMBERS)
def _div_mode(
    b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand, rounding_mode: str | None = None
) -> Value:
    if rounding_mode == "trunc":
        return b.op("trunc", b.op("div", self, other)) if dtype in FLOATS else b.op("trunc_div", self, other)
    if dtype in INTEGERS:
        return b.op("floor_div", self, other)
    return _floor_divided(b, dtype, self, other)


@RECIPES.define("floor_divide", computes=NUMBERS)
def _floor_divide(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand) -> Value:
    return b.op("floor_div", self, other) if dtype in INTEGERS else _floor_divided(b, dtype, self, other)


def _floor_divided(b: BodyBuilder, dtype: torch.dtype, x: Operand, y: Operand) -> Value:
    """By the remainder, as Python and torch do: the quotient's own rounding may pass a whole number."""
    quotient = b.op("div", x, y)
    rest = b.op("fmod", x, y)
    whole = b.op("div", b.op("sub", x, rest), y)
    opposite = b.op("ne", b.op("lt", y, b.constant(0, dtype)), b.op("lt", rest, b.constant(0, dtype)))
    lower = b.op("bitwise_and", b.op("ne", rest, 0), opposite)
    whole = b.op("select", lower, b.op("sub", whole, 1), whole)
    floor = b.op("floor", whole)
    near = b.op("select", b.op("gt", b.op("sub", whole, floor), 0.5), b.op("add", floor, 1), floor)
    near = b.op("select", b.op("eq", whole, 0), b.op("copysign", b.constant(0, dtype), quotient), near)
    return b.op("select", b.op("eq", y, b.constant(0, dtype)), quotient, near)


@RECIPES.define("div.Tensor_mode:None", kind=TO_FLOAT)
def _div_none(
    b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand, rounding_mode: str | None = None
) -> Value:
    return b.op("div", self, other)


@RECIPES.define("abs", "prims.abs")
def _abs(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Operand:
    return self if dtype is torch.bool else b.op("abs", self)


@RECIPES.define("sign", "prims.sign", "sgn")
def _sign(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Operand:
    return self if dtype is torch.bool else b.op("sign", self)


for _name in ("floor", "ceil", "trunc", "round"):

    @RECIPES.define(*((f"{_name}.default", f"prims.{_name}")), *(("fix",) if _name == "trunc" else ()))
    def _rounded(b: BodyBuilder, dtype: torch.dtype, self: Operand, _name: str = _name) -> Operand:
        return b.op(_name, self) if dtype in FLOATS else self


@RECIPES.define("round.decimals", computes=FLOATS)
def _round_decimals(b: BodyBuilder, dtype: torch.dtype, self: Operand, decimals: int) -> Value:
    scale = 10.0 ** abs(decimals)
    first, second = ("mul", "div") if decimals > 0 else ("div", "mul")
    if decimals == 0:
        return b.op("round", self)
    return b.op(second, b.op("round", b.op(first, self, scale)), scale)


@RECIPES.define("frac", computes=FLOATS)
def _frac(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Value:
    return b.op("sub", self, b.op("trunc", self))


@RECIPES.define("square")
def _square(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Value:
    return b.op("bitwise_and" if dtype is torch.bool else "mul", self, self)


@RECIPES.define("positive", "conj_physical", "prims.conj_physical", "real", "prims.real")
def _same(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Operand:
    return self


@RECIPES.define("copysign", kind=TO_FLOAT)
def _copysign(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand) -> Value:
    return b.op("copysign", self, other)


for _name in ("fmin", "fmax"):

    @RECIPES.define(_name, f"prims.{_name}")
    def _f_extremum(
        b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand, _name: str = _name
    ) -> Value:
        return b.op(_name if dtype in FLOATS else {"fmin": "minimum", "fmax": "maximum"}[_name], self, other)


for _name, _bits in (("and", "bitwise_and"), ("or", "bitwise_or"), ("xor", "bitwise_xor")):

    @RECIPES.define(f"logical_{_name}", kind=TO_BOOL, dtypes={"self": torch.bool, "other": torch.bool})
    def _logical(
        b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand, _bits: str = _bits
    ) -> Value:
        return b.op(_bits, self, other)


@RECIPES.define("logical_not", kind=TO_BOOL, dtypes={"self": torch.bool})
def _logical_not(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Value:
    return b.op("bitwise_not", self)


@RECIPES.define("isnan", kind=TO_BOOL)
def _isnan(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Operand:
    return b.op("isnan", self) if dtype in FLOATS else False


@RECIPES.define("isinf", kind=TO_BOOL)
def _isinf(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Operand:
    return b.op("isinf", self) if dtype in FLOATS else False


@RECIPES.define("isfinite", "prims.isfinite", kind=TO_BOOL)
def _isfinite(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Operand:
    return b.op("isfinite", self) if dtype in FLOATS else True


@RECIPES.define("isposinf", "isneginf", kind=TO_BOOL)
def _isposinf(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Operand:
    return b.op("eq", self, math.inf) if dtype in FLOATS else False


@RECIPES.define("isneginf", kind=TO_BOOL)
def _isneginf(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Operand:
    return b.op("eq", self, -math.inf) if dtype in FLOATS else False


@RECIPES.define("signbit", "prims.signbit", kind=TO_BOOL)
def _signbit(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Operand:
    if dtype is torch.bool:
        return False
    return b.op("signbit", self) if dtype in FLOATS else b.op("lt", self, 0)


@RECIPES.define("pow", "prims.pow", promotes=("self", "other", "exponent"), computes=NUMBERS)
def _pow(
    b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand = 1, exponent: Operand | None = None
) -> Operand:
    return power(b, dtype, self, other if exponent is None else exponent)


def power(b: BodyBuilder, dtype: torch.dtype, base: Operand, exponent: Operand) -> Operand:
    """Small constant exponents by the same products as torch."""
    if isinstance(exponent, Value) or not isinstance(base, Value):
        return b.op("pow", base, exponent)
    exponent = float(exponent) if dtype in FLOATS else int(exponent)
    if exponent == 0:
        return b.constant(1, dtype)
    if exponent in (1, 2, 3):
        result = base
        for _ in range(int(exponent) - 1):
            result = b.op("mul", result, base)
        return result
    if dtype in FLOATS and exponent in _POWERS:
        return _power_by(b, base, exponent)
    return b.op("pow", base, exponent)


_POWERS = (0.5, -0.5, -1.0, -2.0)


def _power_by(b: BodyBuilder, base: Value, exponent: Number) -> Value:
    if exponent == 0.5:
        return b.op("sqrt", base)
    if exponent == -0.5:
        return b.op("rsqrt", base)
    return b.op("reciprocal", base if exponent == -1.0 else b.op("mul", base, base))


@RECIPES.define("float_power", kind=None, computes=FLOATS)
def _float_power(
    b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand = 1, exponent: Operand | None = None
) -> Operand:
    return power(b, dtype, self, other if exponent is None else exponent)


@RECIPES.define("heaviside")
def _heaviside(b: BodyBuilder, dtype: torch.dtype, self: Operand, values: Operand) -> Value:
    if dtype is torch.bool:
        return b.op("bitwise_or", self, values)
    zero, one = b.constant(0, dtype), b.constant(1, dtype)
    return b.op("select", b.op("eq", self, zero), values, b.op("select", b.op("lt", self, zero), zero, one))


@RECIPES.define("ldexp", kind=TO_FLOAT)
def _ldexp(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand) -> Value:
    return b.op("mul", self, b.op("pow", b.constant(2, dtype), other))


@RECIPES.define("deg2rad", kind=TO_FLOAT)
def _deg2rad(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Value:
    return b.op("mul", self, math.pi / 180)


@RECIPES.define("rad2deg", kind=TO_FLOAT)
def _rad2deg(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Value:
    return b.op("mul", self, 180 / math.pi)


@RECIPES.define("angle", kind=TO_FLOAT)
def _angle(b: BodyBuilder, dtype: torch.dtype, self: Operand) -> Value:
    half = b.op("select", b.op("lt", self, 0.0), b.constant(math.pi, dtype), b.constant(0.0, dtype))
    return b.op("select", b.op("isnan", self), self, half)
