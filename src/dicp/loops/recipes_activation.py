"""Recipes of activations, and of sums of products and logarithms that torch has as one operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dicp.loops.primitives import FLOATS, NUMBERS, BodyBuilder, Number, Value
from dicp.loops.recipes import Build, Operand, PromotionKind, Recipes

__all__ = ["RECIPES", "inverse_logit", "within"]

RECIPES = Recipes()
SQRT_HALF = math.sqrt(0.5)
TANH_FACTOR, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


def _activation(*names: str, **rest: Any) -> Callable[[Build], Build]:
    return RECIPES.define(*names, kind=None, computes=FLOATS, **rest)


@RECIPES.define("relu", kind=None, computes=NUMBERS)
def _relu(b: BodyBuilder, dtype: torch.dtype, self: Value) -> Value:
    return b.op("select", b.op("lt", self, 0), b.constant(0, dtype), self)


@_activation("gelu")
def _gelu(b: BodyBuilder, dtype: torch.dtype, self: Value, approximate: str) -> Value:
    if approximate == "tanh":
        cube = b.op("mul", b.op("mul", self, self), self)
        inner = b.op("mul", b.op("add", self, b.op("mul", cube, TANH_CUBE)), TANH_FACTOR)
        return b.op("mul", b.op("mul", self, 0.5), b.op("add", b.op("tanh", inner), 1))
    return b.op("mul", b.op("mul", self, 0.5), b.op("add", b.op("erf", b.op("mul", self, SQRT_HALF)), 1))


@_activation("silu")
def _silu(b: BodyBuilder, dtype: torch.dtype, self: Value) -> Value:
    return b.op("div", self, b.op("add", b.op("exp", b.op("neg", self)), 1))


@_activation("softplus")
def _softplus(b: BodyBuilder, dtype: torch.dtype, self: Value, beta: Number, threshold: Number) -> Value:
    scaled = b.op("mul", self, beta)
    soft = b.op("div", b.op("log1p", b.op("exp", scaled)), beta)
    return b.op("select", b.op("gt", scaled, threshold), self, soft)


@_activation("elu")
def _elu(
    b: BodyBuilder, dtype: torch.dtype, self: Value, alpha: Number, scale: Number, input_scale: Number
) -> Value:
    below = b.op("mul", b.op("expm1", b.op("mul", self, input_scale)), alpha * scale)
    return b.op("select", b.op("lt", self, 0), below, b.op("mul", self, scale))


@_activation("leaky_relu")
def _leaky_relu(b: BodyBuilder, dtype: torch.dtype, self: Value, negative_slope: Number) -> Value:
    return b.op("select", b.op("gt", self, 0), self, b.op("mul", self, negative_slope))


@_activation("_prelu_kernel")
def _prelu(b: BodyBuilder, dtype: torch.dtype, self: Value, weight: Value) -> Value:
    return b.op("select", b.op("gt", self, 0), self, b.op("mul", self, weight))


@RECIPES.define("hardtanh", kind=None, computes=NUMBERS)
def _hardtanh(b: BodyBuilder, dtype: torch.dtype, self: Value, min_val: Number, max_val: Number) -> Value:
    return within(b, self, min_val, max_val)


@RECIPES.define("relu6", kind=None, computes=NUMBERS)
def _relu6(b: BodyBuilder, dtype: torch.dtype, self: Value) -> Value:
    return within(b, self, 0, 6)


def within(b: BodyBuilder, value: Value, low: Operand | None, high: Operand | None) -> Value:
    """Clamped; NaN stays."""
    if low is not None:
        value = b.op("maximum", value, low)
    return value if high is None else b.op("minimum", value, high)


@_activation("hardsigmoid")
def _hardsigmoid(b: BodyBuilder, dtype: torch.dtype, self: Value) -> Value:
    return b.op("div", within(b, b.op("add", self, 3), 0, 6), 6)


@_activation("hardswish")
def _hardswish(b: BodyBuilder, dtype: torch.dtype, self: Value) -> Value:
    return b.op("div", b.op("mul", self, within(b, b.op("add", self, 3), 0, 6)), 6)


@_activation("mish")
def _mish(b: BodyBuilder, dtype: torch.dtype, self: Value) -> Value:
    return b.op("mul", self, b.op("tanh", b.op("log1p", b.op("exp", self))))


@_activation("hardshrink")
def _hardshrink(b: BodyBuilder, dtype: torch.dtype, self: Value, lambd: Number) -> Value:
    small = b.op("bitwise_and", b.op("ge", self, -lambd), b.op("le", self, lambd))
    return b.op("select", small, b.constant(0, dtype), self)


@RECIPES.define("threshold", kind=None, computes=NUMBERS)
def _threshold(b: BodyBuilder, dtype: torch.dtype, self: Value, threshold: Number, value: Number) -> Value:
    return b.op("select", b.op("le", self, threshold), b.constant(value, dtype), self)


@RECIPES.define("logit", kind=PromotionKind.INT_TO_FLOAT)
def _logit(b: BodyBuilder, dtype: torch.dtype, self: Value, eps: float | None = None) -> Value:
    x = self if eps is None else within(b, self, eps, 1 - eps)
    return inverse_logit(b, x)


def inverse_logit(b: BodyBuilder, x: Value) -> Value:
    return b.op("log", b.op("div", x, b.op("sub", 1, x)))


@RECIPES.define("sinc", kind=PromotionKind.INT_TO_FLOAT)
def _sinc(b: BodyBuilder, dtype: torch.dtype, self: Value) -> Value:
    turned = b.op("mul", self, math.pi)
    return b.op("select", b.op("eq", self, 0), b.constant(1, dtype), b.op("div", b.op("sin", turned), turned))


@RECIPES.define("special_entr", kind=PromotionKind.INT_TO_FLOAT)
def _entr(b: BodyBuilder, dtype: torch.dtype, self: Value) -> Value:
    inside = b.op("mul", b.op("neg", self), b.op("log", self))
    edge = b.op("select", b.op("eq", self, 0), b.constant(0, dtype), b.constant(-math.inf, dtype))
    known = b.op("bitwise_or", b.op("gt", self, 0), b.op("isnan", self))
    return b.op("select", known, inside, edge)


@RECIPES.define("addcmul", promotes=("self", "tensor1", "tensor2"), computes=NUMBERS, opmath=True)
def _addcmul(
    b: BodyBuilder, dtype: torch.dtype, self: Value, tensor1: Value, tensor2: Value, value: Operand
) -> Value:
    return b.op("add", self, b.op("mul", _times(b, tensor1, value), tensor2))


@RECIPES.define("addcdiv", promotes=("self", "tensor1", "tensor2"), computes=FLOATS, opmath=True)
def _addcdiv(
    b: BodyBuilder, dtype: torch.dtype, self: Value, tensor1: Value, tensor2: Value, value: Operand
) -> Value:
    return b.op("add", self, b.op("div", _times(b, tensor1, value), tensor2))


def _times(b: BodyBuilder, value: Value, factor: Operand) -> Value:
    return value if not isinstance(factor, Value) and factor == 1 else b.op("mul", value, factor)


@RECIPES.define("lerp", promotes=("self", "end"), computes=FLOATS, opmath=True)
def _lerp(b: BodyBuilder, dtype: torch.dtype, self: Value, end: Value, weight: Operand) -> Value:
    """From the end that is nearer."""
    way = b.op("sub", end, self)
    if not isinstance(weight, Value):
        if abs(weight) < 0.5:
            return b.op("add", self, b.op("mul", way, weight))
        return b.op("sub", end, b.op("mul", way, 1 - weight))
    near = b.op("add", self, b.op("mul", way, weight))
    far = b.op("sub", end, b.op("mul", way, b.op("sub", 1, weight)))
    return b.op("select", b.op("lt", b.op("abs", weight), 0.5), near, far)


@RECIPES.define("xlogy", "special_xlogy", kind=PromotionKind.INT_TO_FLOAT)
def _xlogy(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand) -> Value:
    return _times_log(b, dtype, self, other, "log")


@RECIPES.define("special_xlog1py", kind=PromotionKind.INT_TO_FLOAT)
def _xlog1py(b: BodyBuilder, dtype: torch.dtype, self: Operand, other: Operand) -> Value:
    return _times_log(b, dtype, self, other, "log1p")


def _times_log(b: BodyBuilder, dtype: torch.dtype, x: Operand, y: Operand, log: str) -> Value:
    x = x if isinstance(x, Value) else b.constant(x, dtype)
    y = y if isinstance(y, Value) else b.constant(y, dtype)
    zero = b.op("bitwise_and", b.op("eq", x, 0), b.op("bitwise_not", b.op("isnan", y)))
    return b.op("select", zero, b.constant(0, dtype), b.op("mul", x, b.op(log, y)))


@RECIPES.define("logaddexp", computes=FLOATS)
def _logaddexp(b: BodyBuilder, dtype: torch.dtype, self: Value, other: Value) -> Value:
    rest = b.op("log1p", b.op("exp", b.op("neg", b.op("abs", b.op("sub", self, other)))))
    return _equal_infinities(b, self, other, rest)


@RECIPES.define("logaddexp2", computes=FLOATS)
def _logaddexp2(b: BodyBuilder, dtype: torch.dtype, self: Value, other: Value) -> Value:
    power = b.op("exp2", b.op("neg", b.op("abs", b.op("sub", self, other))))
    return _equal_infinities(b, self, other, b.op("mul", b.op("log1p", power), 1 / math.log(2)))


def _equal_infinities(b: BodyBuilder, x: Value, y: Value, rest: Value) -> Value:
    same = b.op("bitwise_and", b.op("isinf", x), b.op("eq", x, y))
    return b.op("select", same, x, b.op("add", b.op("maximum", x, y), rest))
