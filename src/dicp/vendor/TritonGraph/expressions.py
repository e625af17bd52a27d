"""Sizes, indices and numbers as text: of kernels in Triton, and of the Python around them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

from dicp.loops.index import Affine, FloorQuotient, Size
from dicp.loops.primitives import Number

__all__ = [
    "HELD_TYPES",
    "STORED_TYPES",
    "KernelNumbers",
    "bits_of",
    "host_text",
    "index_text",
    "literal_text",
    "power_above",
]

HELD_TYPES: Mapping[torch.dtype, str] = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}
"""Of values."""
STORED_TYPES: Mapping[torch.dtype, str] = {
    **HELD_TYPES,
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
}
"""Of memory."""


def power_above(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least `number` and `least`."""
    return 1 << max(number - 1, least - 1, 0).bit_length()


class KernelNumbers:
    """The numbers of a kernel that are computed from sizes: its parameters `n0, n1...`, computed before each launch."""

    def __init__(self) -> None:
        self.names: dict[sympy.Expr, str] = {}
        self.bits: set[str] = set()
        """Names of those that carry the bits of a float64."""

    def text(self, size: Size) -> str:
        """A size in a kernel."""
        if isinstance(size, int):
            return str(size) if size >= 0 else f"({size})"
        if size.is_Integer:
            return self.text(int(size))
        return self.names.setdefault(size, f"n{len(self.names)}")

    def of_float(self, number: sympy.Expr) -> str:
        """A number that is perhaps no integer: the bits of a float64."""
        name = self.names.setdefault(number, f"n{len(self.names)}")
        self.bits.add(name)
        return name


def bits_of(number: float) -> int:
    """A float64 as the int64 of its bits."""
    (bits,) = struct.unpack("q", struct.pack("d", number))
    return int(bits)


_PRINTER = PythonPrinter()


def host_text(size: Size, names: Mapping[sympy.Symbol, Size] | None = None) -> str:
    """A size as Python; symbols are variables of their names, or what they stand for."""
    if isinstance(size, int):
        return str(size)
    return str(_PRINTER.doprint(size.xreplace(dict(names or {}))))


def index_text(index: Affine, variable: Callable[[str], str], number: Callable[[Size], str]) -> str:
    """The index as a sum; quotients are of operands that are never negative. `variable`: of loops and values."""
    parts = []
    for term, factor in index.terms:
        if isinstance(term, str):
            text = variable(term)
        else:
            sign = "//" if isinstance(term, FloorQuotient) else "%"
            text = f"(({index_text(term.operand, variable, number)}) {sign} {number(term.divisor)})"
        parts.append(text if factor == 1 else f"{text} * {number(factor)}")
    if index.constant != 0 or not parts:
        parts.append(number(index.constant))
    return " + ".join(parts)


def literal_text(value: Number, dtype: torch.dtype) -> str:
    """A number as a constant of a dtype in which values are held; integers wrap."""
    return f"tl.full([1, 1], {plain_text(value, dtype)}, {HELD_TYPES[dtype]})"


def plain_text(value: Number, dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return str(bool(value))
    if dtype.is_floating_point:
        return _float_text(float(value), dtype)
    limits = torch.iinfo(dtype)
    width = limits.max - limits.min + 1
    return str((int(value) - limits.min) % width + limits.min)


def _float_text(value: float, dtype: torch.dtype) -> str:
    if dtype is torch.float32 and math.isfinite(value):
        try:
            (value,) = struct.unpack("f", struct.pack("f", value))
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isfinite(value):
        return repr(value)
    return f'float("{"nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}")'
