"""Recipes of copies, conversions, choices and limits."""

from __future__ import annotations

import torch

from dicp.loops.primitives import FLOATS, BodyBuilder, Number, Value
from dicp.loops.recipes import Operand, Recipes
from dicp.loops.recipes_activation import within

__all__ = ["RECIPES"]

RECIPES = Recipes()


@RECIPES.define(
    "_to_copy",
    "prims.convert_element_type",
    kind=None,
    ignores=("dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format"),
    converts=True,
)
@RECIPES.define("copy", kind=None, ignores=("self", "non_blocking"), converts=True)
@RECIPES.define("type_as", "fill.Tensor", kind=None, ignores=("other",), converts=True)
def _convert(b: BodyBuilder, dtype: torch.dtype, **operands: Operand) -> Operand:
    raise AssertionError("a conversion has no arithmetic")


RECIPES["aten.fill.Tensor"] = RECIPES["aten.copy"]


@RECIPES.define(
    "clone",
    "prims.clone",
    "lift_fresh_copy",
    "alias_copy",
    "contiguous",
    kind=None,
    ignores=("memory_format",),
)
def _clone(b: BodyBuilder, dtype: torch.dtype, self: Value) -> Value:
    return self


@RECIPES.define("fill.Scalar", kind=None, ignores=("self",))
def _fill(b: BodyBuilder, dtype: torch.dtype, value: Operand) -> Operand:
    return value


@RECIPES.define(
    "where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar", dtypes={"condition": torch.bool}
)
def _where(b: BodyBuilder, dtype: torch.dtype, condition: Value, self: Operand, other: Operand) -> Value:
    return b.op("select", condition, _value(b, self, dtype), _value(b, other, dtype))


@RECIPES.define("prims.where", dtypes={"pred": torch.bool})
def _prims_where(b: BodyBuilder, dtype: torch.dtype, pred: Value, a: Operand, **rest: Operand) -> Value:
    return b.op("select", pred, _value(b, a, dtype), _value(b, rest["b"], dtype))


def _value(b: BodyBuilder, operand: Operand, dtype: torch.dtype) -> Value:
    return operand if isinstance(operand, Value) else b.constant(operand, dtype)


@RECIPES.define("masked_fill", kind=None, dtypes={"mask": torch.bool})
def _masked_fill(b: BodyBuilder, dtype: torch.dtype, self: Value, mask: Value, value: Operand) -> Value:
    return b.op("select", mask, _value(b, value, dtype), self)


@RECIPES.define("clamp", promotes=("self", "min", "max"))
def _clamp(
    b: BodyBuilder, dtype: torch.dtype, self: Value, min: Operand | None = None, max: Operand | None = None
) -> Value:
    return within(b, self, min, max)


@RECIPES.define("clamp_min", promotes=("self", "min"))
def _clamp_min(b: BodyBuilder, dtype: torch.dtype, self: Value, min: Operand) -> Value:
    return within(b, self, min, None)


@RECIPES.define("clamp_max", promotes=("self", "max"))
def _clamp_max(b: BodyBuilder, dtype: torch.dtype, self: Value, max: Operand) -> Value:
    return within(b, self, None, max)


@RECIPES.define("nan_to_num", kind=None, sees_result=True)
def _nan_to_num(
    b: BodyBuilder,
    dtype: torch.dtype,
    self: Value,
    result: torch.dtype,
    nan: Number | None = None,
    posinf: Number | None = None,
    neginf: Number | None = None,
) -> Value:
    if dtype not in FLOATS:
        return self
    limits = torch.finfo(result)
    high = b.constant(limits.max if posinf is None else posinf, dtype)
    low = b.constant(limits.min if neginf is None else neginf, dtype)
    inner = b.op("select", b.op("eq", self, float("inf")), high, self)
    inner = b.op("select", b.op("eq", self, -float("inf")), low, inner)
    return b.op("select", b.op("isnan", self), b.constant(nan or 0, dtype), inner)
