"""Operators of one element each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dicp.vendor.AscendGraph.dtypes import dtype_numbered
from dicp.vendor.AscendGraph.operators import computes, computes_all, require_one_dtype

Binary = Callable[[Tensor, Tensor], Tensor]

computes_all(
    {
        "Abs": torch.abs,
        "Acos": torch.acos,
        "Acosh": torch.acosh,
        "Asin": torch.asin,
        "Asinh": torch.asinh,
        "Atan": torch.atan,
        "Atanh": torch.atanh,
        "Ceil": torch.ceil,
        "Cos": torch.cos,
        "Cosh": torch.cosh,
        "Erf": torch.erf,
        "Erfc": torch.erfc,
        "Expm1": torch.expm1,
        "Floor": torch.floor,
        "Identity": torch.clone,
        "Invert": torch.bitwise_not,
        "IsFinite": torch.isfinite,
        "IsInf": torch.isinf,
        "IsNan": torch.isnan,
        "Log1p": torch.log1p,
        "LogicalNot": torch.logical_not,
        "Neg": torch.neg,
        "Reciprocal": torch.reciprocal,
        "Relu": torch.relu,
        "Round": torch.round,
        "Rsqrt": torch.rsqrt,
        "Sigmoid": torch.sigmoid,
        "Sign": torch.sign,
        "Sin": torch.sin,
        "Sinh": torch.sinh,
        "Sqrt": torch.sqrt,
        "Square": torch.square,
        "Tan": torch.tan,
        "Tanh": torch.tanh,
        "Trunc": torch.trunc,
    }
)


def _floor_div(x1: Tensor, x2: Tensor) -> Tensor:
    return torch.floor(x1 / x2) if x1.is_floating_point() else torch.div(x1, x2, rounding_mode="floor")


_BINARY: dict[str, Binary] = {
    "Add": torch.add,
    "Atan2": torch.atan2,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Equal": torch.eq,
    "FloorDiv": _floor_div,
    "FloorMod": torch.remainder,
    "Greater": torch.gt,
    "GreaterEqual": torch.ge,
    "LeftShift": torch.bitwise_left_shift,
    "Less": torch.lt,
    "LessEqual": torch.le,
    "LogicalAnd": torch.logical_and,
    "LogicalOr": torch.logical_or,
    "Maximum": torch.maximum,
    "Minimum": torch.minimum,
    "Mul": torch.mul,
    "NotEqual": torch.ne,
    "Pow": torch.pow,
    "RealDiv": lambda x1, x2: torch.div(x1, x2).to(x1.dtype),
    "RightShift": torch.bitwise_right_shift,
    "SquaredDifference": lambda x1, x2: (x1 - x2) * (x1 - x2),
    "Sub": torch.sub,
    "TruncateDiv": lambda x1, x2: torch.div(x1, x2, rounding_mode="trunc"),
    "TruncateMod": torch.fmod,
    "Xlogy": torch.xlogy,
}


def _of_one_dtype(name: str, function: Binary) -> Binary:
    def compute(x1: Tensor, x2: Tensor) -> Tensor:
        require_one_dtype(name, x1, x2)
        return function(x1, x2)

    return compute


computes_all({name: _of_one_dtype(name, function) for name, function in _BINARY.items()})


@computes("Cast")
def cast(x: Any, *, dst_type: int) -> Tensor:
    dtype = dtype_numbered(dst_type)
    # A size is cast when it becomes an operand.
    return x.to(dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=dtype)


@computes("Bitcast")
def bitcast(x: Tensor, *, type: torch.dtype, keep_dim: bool = False) -> Tensor:
    return x.view(type)


@computes("Exp")
def exp(x: Tensor, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """The base -1 stands for e."""
    power = x if (scale, shift) == (1.0, 0.0) else x * scale + shift
    if base == 2.0:
        return torch.exp2(power)
    return torch.exp(power) if base == -1.0 else torch.pow(base, power)


@computes("Log")
def log(x: Tensor, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    value = x if (scale, shift) == (1.0, 0.0) else x * scale + shift
    if base in (2.0, 10.0):
        return torch.log2(value) if base == 2.0 else torch.log10(value)
    result = torch.log(value)
    return result if base == -1.0 else result / torch.log(torch.tensor(base, dtype=result.dtype))


@computes("SelectV2")
def select(condition: Tensor, then: Tensor, otherwise: Tensor) -> Tensor:
    require_one_dtype("SelectV2", then, otherwise)
    return torch.where(condition, then, otherwise)


@computes("MaskedFill")
def masked_fill(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    require_one_dtype("MaskedFill", x, value)
    return torch.where(mask, value, x)


@computes("ClipByValueV2")
def clip_by_value(x: Tensor, clip_value_min: Tensor, clip_value_max: Tensor) -> Tensor:
    require_one_dtype("ClipByValueV2", x, clip_value_min, clip_value_max)
    return torch.clamp(x, clip_value_min, clip_value_max)


@computes("Lerp")
def lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    require_one_dtype("Lerp", start, end, weight)
    return torch.lerp(start, end, weight)


@computes("Addcmul")
def addcmul(input_data: Tensor, x1: Tensor, x2: Tensor, value: Tensor) -> Tensor:
    require_one_dtype("Addcmul", input_data, x1, x2, value)
    return input_data + value * x1 * x2


@computes("Addcdiv")
def addcdiv(input_data: Tensor, x1: Tensor, x2: Tensor, value: Tensor) -> Tensor:
    require_one_dtype("Addcdiv", input_data, x1, x2, value)
    return input_data + value * x1 / x2


@computes("NanToNum")
def nan_to_num(x: Tensor, *, nan: float, posinf: float, neginf: float) -> Tensor:
    return torch.nan_to_num(x, nan, posinf, neginf)
