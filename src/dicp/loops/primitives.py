"""The vocabulary of formulas: what every loop vendor can print.

A primitive takes values of one dtype and gives that dtype or bool; `select` takes a bool before them. What a primitive gives
for NaN, for infinities, out of range and at ties is what torch gives on the CPU; `evaluate.py` is the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["DTYPES", "PRIMITIVES", "BodyBuilder", "Number", "Primitive", "Value", "held", "result_dtype"]

Number = bool | int | float

FLOATS = frozenset({torch.float32, torch.float64})
INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
BOOL = frozenset({torch.bool})
NUMBERS = FLOATS | INTEGERS
BITS = INTEGERS | BOOL
ALL = NUMBERS | BOOL

DTYPES = ALL | {torch.bfloat16, torch.float16}
"""What memory may hold; complex numbers and quantised ones stay with ATen."""


@dataclass(frozen=True, slots=True)
class Value:
    """One element, computed once in a loop's body."""

    name: str
    dtype: torch.dtype
    """What it is computed in: float32 for bfloat16 and float16."""


class BodyBuilder(Protocol):
    """Appends instructions to a body."""

    def op(self, primitive: str, *operands: Value | Number, dtype: torch.dtype | None = None) -> Value:
        """The result of a primitive. Numbers take the dtype of the values beside them."""

    def constant(self, value: Number, dtype: torch.dtype) -> Value:
        """A number."""

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """Conversion as torch's `to` does it; to a 16-bit float: the value rounded, still held in float32."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """One word of the vocabulary."""

    name: str
    arity: int
    dtypes: frozenset[torch.dtype]
    """In which it can be computed."""
    gives_bool: bool = False


def _table() -> dict[str, Primitive]:
    table: dict[str, Primitive] = {}

    def add(names: str, arity: int, dtypes: frozenset[torch.dtype], gives_bool: bool = False) -> None:
        for name in names.split():
            table[name] = Primitive(name, arity, dtypes, gives_bool)

    add("add sub mul", 2, NUMBERS)
    add("neg abs sign", 1, NUMBERS)
    add("minimum maximum", 2, ALL)  # NaN if one is NaN
    add("fmin fmax", 2, FLOATS)  # the other if one is NaN
    add("fmod remainder", 2, NUMBERS)  # sign of the dividend; sign of the divisor
    add("pow", 2, NUMBERS)
    add("eq ne lt le gt ge", 2, ALL, gives_bool=True)
    add("select", 3, ALL)
    add("isnan isinf isfinite signbit", 1, FLOATS, gives_bool=True)

    add("div copysign hypot atan2 nextafter", 2, FLOATS)
    add("fma", 3, FLOATS)  # rounded once
    add("reciprocal sqrt rsqrt floor ceil round trunc", 1, FLOATS)  # round: half to even
    add("exp exp2 expm1 log log1p log2 log10 sigmoid", 1, FLOATS)
    add("sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh", 1, FLOATS)
    add("erf erfc erfinv lgamma digamma", 1, FLOATS)

    add("floor_div trunc_div gcd", 2, INTEGERS)
    add("bitwise_and bitwise_or bitwise_xor", 2, BITS)
    add("bitwise_not", 1, BITS)
    add("shift_left shift_right", 2, INTEGERS)
    return table


PRIMITIVES = _table()


def held(dtype: torch.dtype) -> torch.dtype:
    """What an element of memory is computed in."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def result_dtype(primitive: str, dtype: torch.dtype) -> torch.dtype:
    """What a primitive gives, computed in a dtype."""
    if dtype not in PRIMITIVES[primitive].dtypes:
        raise TypeError(f"{primitive} is not computed in {dtype}")
    return torch.bool if PRIMITIVES[primitive].gives_bool else dtype
