"""Recipes of the gradients of activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dicp.loops.primitives import FLOATS, BodyBuilder, Number, Value
from dicp.loops.recipes import Build, Recipes
from dicp.loops.recipes_activation import SQRT_HALF, TANH_CUBE, TANH_FACTOR

__all__ = ["RECIPES"]

RECIPES = Recipes()


def _gradient(*names: str, **rest: Any) -> Callable[[Build], Build]:
    return RECIPES.define(*names, kind=None, computes=FLOATS, **rest)


@_gradient("sigmoid_backward")
def _sigmoid(b: BodyBuilder, dtype: torch.dtype, grad_output: Value, output: Value) -> Value:
    return b.op("mul", b.op("mul", grad_output, b.op("sub", 1, output)), output)


@_gradient("tanh_backward")
def _tanh(b: BodyBuilder, dtype: torch.dtype, grad_output: Value, output: Value) -> Value:
    return b.op("mul", grad_output, b.op("sub", 1, b.op("mul", output, output)))


@_gradient("gelu_backward")
def _gelu(b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value, approximate: str) -> Value:
    if approximate == "tanh":
        return b.op("mul", grad_output, _gelu_tanh_slope(b, self))
    below = b.op("mul", b.op("add", b.op("erf", b.op("mul", self, SQRT_HALF)), 1), 0.5)
    density = b.op("mul", b.op("exp", b.op("mul", b.op("mul", self, self), -0.5)), 1 / math.sqrt(2 * math.pi))
    return b.op("mul", grad_output, b.op("add", below, b.op("mul", self, density)))


def _gelu_tanh_slope(b: BodyBuilder, x: Value) -> Value:
    square = b.op("mul", x, x)
    inner = b.op("mul", b.op("add", x, b.op("mul", b.op("mul", square, x), TANH_CUBE)), TANH_FACTOR)
    t = b.op("tanh", inner)
    left = b.op("mul", b.op("add", t, 1), 0.5)
    slope = b.op("mul", b.op("add", b.op("mul", square, 3 * TANH_CUBE), 1), TANH_FACTOR)
    inside = b.op("mul", b.op("sub", 1, b.op("mul", t, t)), slope)
    return b.op("add", left, b.op("mul", b.op("mul", x, 0.5), inside))


@_gradient("silu_backward")
def _silu(b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value) -> Value:
    s = b.op("sigmoid", self)
    slope = b.op("add", b.op("mul", self, b.op("sub", 1, s)), 1)
    return b.op("mul", b.op("mul", grad_output, s), slope)


@_gradient("mish_backward")
def _mish(b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value) -> Value:
    s, t = b.op("sigmoid", self), b.op("tanh", b.op("log1p", b.op("exp", self)))
    inner = b.op("mul", b.op("mul", self, s), b.op("sub", 1, b.op("mul", t, t)))
    return b.op("mul", grad_output, b.op("add", t, inner))


@_gradient("softplus_backward")
def _softplus(
    b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value, beta: Number, threshold: Number
) -> Value:
    scaled = b.op("mul", self, beta)
    z = b.op("exp", scaled)
    soft = b.op("div", b.op("mul", grad_output, z), b.op("add", z, 1))
    return b.op("select", b.op("gt", scaled, threshold), grad_output, soft)


@_gradient("elu_backward")
def _elu(
    b: BodyBuilder,
    dtype: torch.dtype,
    grad_output: Value,
    self_or_result: Value,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
) -> Value:
    x = self_or_result
    if is_result:
        below = b.op("mul", b.op("mul", grad_output, input_scale), b.op("add", x, alpha * scale))
    else:
        grown = b.op("exp", b.op("mul", x, input_scale))
        below = b.op("mul", b.op("mul", grad_output, input_scale * alpha * scale), grown)
    return b.op("select", b.op("le", x, 0), below, b.op("mul", grad_output, scale))


@_gradient("leaky_relu_backward", ignores=("self_is_result",))
def _leaky_relu(
    b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value, negative_slope: Number
) -> Value:
    return b.op("select", b.op("gt", self, 0), grad_output, b.op("mul", grad_output, negative_slope))


@_gradient("hardtanh_backward")
def _hardtanh(
    b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value, min_val: Number, max_val: Number
) -> Value:
    outside = b.op("bitwise_or", b.op("le", self, min_val), b.op("ge", self, max_val))
    return b.op("select", outside, b.constant(0, dtype), grad_output)


@_gradient("hardsigmoid_backward")
def _hardsigmoid(b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value) -> Value:
    inside = b.op("bitwise_and", b.op("gt", self, -3), b.op("lt", self, 3))
    return b.op("select", inside, b.op("mul", grad_output, 1 / 6), b.constant(0, dtype))


@_gradient("hardswish_backward")
def _hardswish(b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value) -> Value:
    inner = b.op("mul", grad_output, b.op("add", b.op("div", self, 3), 0.5))
    inner = b.op("select", b.op("lt", self, 3), inner, grad_output)
    return b.op("select", b.op("le", self, -3), b.constant(0, dtype), inner)


@RECIPES.define("threshold_backward", kind=None)
def _threshold(
    b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value, threshold: Number
) -> Value:
    return b.op("select", b.op("le", self, threshold), b.constant(0, dtype), grad_output)


@_gradient("hardshrink_backward")
def _hardshrink(b: BodyBuilder, dtype: torch.dtype, grad_out: Value, self: Value, lambd: Number) -> Value:
    return _outside(b, dtype, grad_out, self, lambd)


@_gradient("softshrink_backward")
def _softshrink(b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value, lambd: Number) -> Value:
    return _outside(b, dtype, grad_output, self, lambd)


def _outside(b: BodyBuilder, dtype: torch.dtype, gradient: Value, x: Value, limit: Number) -> Value:
    small = b.op("bitwise_and", b.op("ge", x, -limit), b.op("le", x, limit))
    return b.op("select", small, b.constant(0, dtype), gradient)


@_gradient("log_sigmoid_backward")
def _log_sigmoid(b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value, buffer: Value) -> Value:
    """The buffer is exp(-|x|)."""
    share = b.op("div", buffer, b.op("add", buffer, 1))
    return b.op("mul", grad_output, b.op("select", b.op("lt", self, 0), b.op("sub", 1, share), share))


@_gradient("logit_backward")
def _logit(
    b: BodyBuilder, dtype: torch.dtype, grad_output: Value, self: Value, eps: float | None = None
) -> Value:
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    outside = b.op("bitwise_or", b.op("lt", self, low), b.op("gt", self, high))
    slope = b.op("div", grad_output, b.op("mul", self, b.op("sub", 1, self)))
    return b.op("select", outside, b.constant(math.nan if eps is None else 0, dtype), slope)


@_gradient("native_dropout_backward", dtypes={"mask": torch.bool})
def _dropout(b: BodyBuilder, dtype: torch.dtype, grad_output: Value, mask: Value, scale: Number) -> Value:
    return b.op("mul", grad_output, b.op("mul", b.cast(mask, dtype), scale))
