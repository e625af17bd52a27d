"""Sizes, indices and numbers as text of C++."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sympy
import torch

from dicp.errors import UnsupportedError
from dicp.loops.index import Affine, FloorQuotient, Size
from dicp.loops.primitives import Number

__all__ = ["HELD_TYPES", "STORED_TYPES", "index_text", "literal_text", "size_text", "sum_text"]

HELD_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "bool",
}
"""Of values."""
STORED_TYPES = {**HELD_TYPES, torch.bfloat16: "u16", torch.float16: "u16", torch.bool: "u8"}
"""Of memory."""


def size_text(size: Size) -> str:
    """An integer expression; sizes are variables of their names."""
    if isinstance(size, int):
        return str(size) if abs(size) < 1 << 31 else f"{size}ll"
    return _expression(size)


def index_text(index: Affine) -> str:
    """The index as a sum; quotients are of operands that are never negative."""
    parts = []
    for variable, factor in index.terms:
        if isinstance(variable, str):
            text = variable
        else:
            sign = "/" if isinstance(variable, FloorQuotient) else "%"
            text = f"(({index_text(variable.operand)}) {sign} {_factor(variable.divisor)})"
        parts.append(text if factor == 1 else f"{text} * {_factor(factor)}")
    if index.constant != 0 or not parts:
        parts.append(size_text(index.constant))
    return " + ".join(parts).replace("+ -", "- ")


def sum_text(sizes: Iterable[str]) -> str:
    return " + ".join(sizes) or "0"


def _factor(size: Size) -> str:
    text = size_text(size)
    return text if text.isalnum() else f"({text})"


def literal_text(value: Number, dtype: torch.dtype) -> str:
    """A number as a constant of a dtype in which values are held; integers wrap."""
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        return _float_text(float(value), dtype)
    limits = torch.iinfo(dtype)
    width = limits.max - limits.min + 1
    whole = (int(value) - limits.min) % width + limits.min
    if dtype is not torch.int64:
        return f"({HELD_TYPES[dtype]}){whole}"
    return f"{whole}ll" if whole > limits.min else f"({whole + 1}ll - 1)"


def _float_text(value: float, dtype: torch.dtype) -> str:
    suffix = "f" if dtype is torch.float32 else ""
    if dtype is torch.float32 and math.isfinite(value):
        try:
            (value,) = struct.unpack("f", struct.pack("f", value))
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    text = repr(value)
    return text + suffix if value >= 0 and not text.startswith("-") else f"({text}{suffix})"


def _expression(value: sympy.Basic) -> str:
    if isinstance(value, sympy.Symbol):
        return str(value.name)
    if value.is_Integer:
        return size_text(int(value))  # type: ignore[call-overload]
    if value.is_Rational or value.is_Float:
        return repr(float(value))  # type: ignore[arg-type]
    write = _FUNCTIONS.get(type(value).__name__)
    if write is None:
        raise UnsupportedError(f"the size {value} has {type(value).__name__}, which is not written in C++")
    return write(*value.args)


def _joined(operator: str) -> Callable[..., str]:
    def write(*args: Any) -> str:
        return "(" + f" {operator} ".join(map(_expression, args)) + ")"

    return write


def _called(function: str) -> Callable[..., str]:
    def write(*args: Any) -> str:
        first, *rest = map(_expression, args)
        for text in rest:
            first = f"{function}({first}, {text})"
        return first if rest else f"{function}({first})"

    return write


def _power(base: Any, exponent: Any) -> str:
    if exponent.is_Integer and 0 <= int(exponent) <= 8:
        return "(" + " * ".join([_expression(base)] * int(exponent) or ["1"]) + ")"
    if exponent.is_Integer and -8 <= int(exponent) < 0:
        return f"(1. / {_power(base, -exponent)})"
    return f"__builtin_pow({_expression(base)}, {_expression(exponent)})"


def _quotient(a: Any, b: Any) -> str:
    return f"(double({_expression(a)}) / double({_expression(b)}))"


def _choice(condition: Any, a: Any, b: Any) -> str:
    return f"({_expression(condition)} ? {_expression(a)} : {_expression(b)})"


def _modular(base: Any, divisor: Any, modulus: Any) -> str:
    return f"size_modulo(size_quotient({_expression(base)}, {_expression(divisor)}), {_expression(modulus)})"


_FUNCTIONS: Mapping[str, Callable[..., str]] = {
    "Add": _joined("+"),
    "Mul": _joined("*"),
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _power,
    "FloorDiv": _called("size_quotient"),
    "CleanDiv": _called("size_quotient"),
    "CeilDiv": lambda a, b: f"-size_quotient(-{_expression(a)}, {_expression(b)})",
    "Mod": _called("size_modulo"),
    "PythonMod": _called("size_modulo"),
    "ModularIndexing": _modular,
    "Max": _called("size_maximum"),
    "Min": _called("size_minimum"),
    "Abs": lambda a: f"__builtin_llabs({_expression(a)})",
    "IntTrueDiv": _quotient,
    "FloatTrueDiv": _quotient,
    "ToFloat": lambda a: f"double({_expression(a)})",
    "TruncToInt": lambda a: f"i64({_expression(a)})",
    "FloorToInt": lambda a: f"i64(__builtin_floor({_expression(a)}))",
    "CeilToInt": lambda a: f"i64(__builtin_ceil({_expression(a)}))",
    "RoundToInt": lambda a: f"i64(__builtin_rint({_expression(a)}))",
    "Where": _choice,
    "Equality": _joined("=="),
    "Unequality": _joined("!="),
    "StrictLessThan": _joined("<"),
    "LessThan": _joined("<="),
    "StrictGreaterThan": _joined(">"),
    "GreaterThan": _joined(">="),
    "And": _joined("&&"),
    "Or": _joined("||"),
    "Not": lambda a: f"!{_expression(a)}",
    "BooleanTrue": lambda: "true",
    "BooleanFalse": lambda: "false",
    "OpaqueUnaryFn_sqrt": lambda a: f"__builtin_sqrt({_expression(a)})",
}
