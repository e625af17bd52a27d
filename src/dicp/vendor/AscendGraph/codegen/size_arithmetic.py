"""Arithmetic on symbolic sizes as nodes of GE: what torch's interpreter of expressions calls."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from dicp.errors import UnsupportedError

if TYPE_CHECKING:
    from dicp.vendor.AscendGraph.codegen.graph_json import GraphWriter

__all__ = ["SizeArithmetic"]


class SizeArithmetic:
    """Values are numbers, or names of nodes that hold a size. Two numbers are computed at once."""

    def __init__(self, writer: GraphWriter) -> None:
        self.writer = writer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedError(f"a size has the operation {name}, which is not written as nodes of GE")

    def _call(self, type_: str, a: Any, b: Any) -> str:
        return self.writer.size_call(type_, self._name(a), self._name(b))

    def _name(self, value: Any) -> str:
        return value if isinstance(value, str) else self.writer.size(int(value))

    def constant(self, value: Any, dtype: torch.dtype) -> Any:
        return int(value)

    def add(self, a: Any, b: Any) -> Any:
        return a + b if _are_numbers(a, b) else self._call("Add", a, b)

    def sym_sum(self, terms: Any) -> Any:
        return reduce(self.add, terms)

    def sub(self, a: Any, b: Any) -> Any:
        return a - b if _are_numbers(a, b) else self._call("Sub", a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return a * b if _are_numbers(a, b) else self._call("Mul", a, b)

    def neg(self, a: Any) -> Any:
        return self.mul(-1, a)

    def floordiv(self, a: Any, b: Any) -> Any:
        return a // b if _are_numbers(a, b) else self._call("FloorDiv", a, b)

    def int_truediv(self, a: Any, b: Any) -> Any:
        raise UnsupportedError("a size that is a fraction")

    def mod(self, a: Any, b: Any) -> Any:
        return a % b if _are_numbers(a, b) else self._call("FloorMod", a, b)

    def python_mod(self, a: Any, b: Any) -> Any:
        return self.mod(a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return max(a, b) if _are_numbers(a, b) else self._call("Maximum", a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return min(a, b) if _are_numbers(a, b) else self._call("Minimum", a, b)

    def pow_by_natural(self, a: Any, b: Any) -> Any:
        if not isinstance(b, int) or b < 1:
            raise UnsupportedError(f"a size to the power {b}")
        result = a
        for _ in range(b - 1):
            result = self.mul(result, a)
        return result


def _are_numbers(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int)
