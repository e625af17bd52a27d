"""Instructions of a body as statements of C++; where a vector of rows is kept, values of the row are arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import sympy
import torch

from dicp.errors import UnsupportedError
from dicp.loops.index import Affine, Size
from dicp.loops.ir import (
    CheckedIndex,
    Compute,
    Convert,
    IndexValue,
    Instruction,
    LiteralValue,
    Load,
    Store,
)
from dicp.loops.primitives import Number, Value
from dicp.vendor.HostGraph.expressions import HELD_TYPES, index_text, literal_text, size_text

__all__ = ["BodyWriter", "Watch", "loaded", "type_of"]

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}
_DIVISIONS = ("fmod", "remainder", "floor_div", "trunc_div")


def type_of(value: Value) -> str:
    return HELD_TYPES[value.dtype]


def loaded(text: str, dtype: torch.dtype) -> str:
    """An element of memory as a value."""
    if dtype is torch.bfloat16:
        return f"from_bf16({text})"
    if dtype is torch.float16:
        return f"from_f16({text})"
    return f"{text} != 0" if dtype is torch.bool else text


def stored(text: str, dtype: torch.dtype) -> str:
    """A value as an element of memory."""
    if dtype is torch.bfloat16:
        return f"to_bf16({text})"
    return f"to_f16({text})" if dtype is torch.float16 else text


@dataclass
class Watch:
    """What loops gather about errors, to be reported behind them."""

    declarations: list[str] = field(default_factory=list)
    clauses: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)


class BodyWriter:
    """Writes one body; `memory`: the dtypes of parameters and scratch."""

    def __init__(
        self,
        memory: Mapping[str, torch.dtype],
        scratch: Collection[str] = (),
        lane: str = "",
        lanes: str = "",
    ) -> None:
        self.memory, self.scratch = memory, scratch
        self.lane, self.lanes = lane, lanes
        """The variable of the loop over a vector of rows, and how many there are at most."""
        self.arrays: set[str] = set()
        self.loaded: set[Value] = set()
        self.watch = Watch()
        self.lines: list[str] = []

    def value(self, operand: Value | Number, dtype: torch.dtype | None = None) -> str:
        if isinstance(operand, Value):
            return f"{operand.name}[{self.lane}]" if operand.name in self.arrays else operand.name
        assert dtype is not None
        return literal_text(operand, dtype)

    def index(self, index: Affine) -> str:
        named = {v: Affine.of(f"{v}[{self.lane}]") for v in index.variables() if v in self.arrays}
        return index_text(index.substitute(named) if named else index)

    def element(self, buffer: str, index: Affine) -> str:
        at = self.index(index)
        if self.lane and buffer in self.scratch:
            return f"{buffer}[({at}) * {self.lanes} + {self.lane}]"
        return f"{buffer}[{at}]"

    def declare(self, value: Value, text: str) -> None:
        if value.name in self.arrays:
            self.lines.append(f"{value.name}[{self.lane}] = {text};")
        else:
            self.lines.append(f"const {type_of(value)} {value.name} = {text};")

    def write(self, i: Instruction) -> None:
        match i:
            case Load():
                self._load(i)
            case Store(buffer, index, operand, when):
                text = stored(self.value(operand), self._dtype(buffer))
                guard = "" if when is None else f"if ({self.value(when)}) "
                self.lines.append(f"{guard}{self.element(buffer, index)} = {text};")
            case Compute():
                self._compute(i)
            case Convert(result, operand, dtype):
                self.declare(result, self._converted(operand, dtype))
            case LiteralValue(result, number):
                self.declare(result, self._number(number, result.dtype))
            case IndexValue(result, index):
                self.declare(result, self.index(index))
            case CheckedIndex():
                self._checked(i)
            case _:
                raise UnsupportedError(f"no code for {type(i).__name__} here")

    def _dtype(self, buffer: str) -> torch.dtype:
        dtype = self.memory[buffer]
        if buffer in self.scratch and dtype in (torch.bfloat16, torch.float16):
            return torch.float32
        return dtype

    def _load(self, i: Load) -> None:
        self.loaded.add(i.result)
        text = loaded(self.element(i.buffer, i.index), self._dtype(i.buffer))
        if i.when is not None:
            text = f"{self.value(i.when)} ? {text} : {literal_text(i.otherwise, i.result.dtype)}"
        self.declare(i.result, text)

    def _number(self, number: Number | sympy.Expr, dtype: torch.dtype) -> str:
        if isinstance(number, (bool, int, float)):
            return literal_text(number, dtype)
        if number.is_Integer or number.is_Rational or number.is_Float or number.is_Boolean:
            known = bool(number) if number.is_Boolean else int(number) if number.is_Integer else float(number)
            return literal_text(known, dtype)
        size: Size = number
        return f"({HELD_TYPES[dtype]})({size_text(size)})"

    def _compute(self, i: Compute) -> None:
        values = [o for o in (i.operands[1:] if i.primitive == "select" else i.operands)]
        of = next((o.dtype for o in values if isinstance(o, Value)), i.result.dtype)
        given = [self.value(o, of) for o in i.operands]
        kind = HELD_TYPES[of]
        if i.primitive == "select":
            text = f"{given[0]} ? {given[1]} : {given[2]}"
        elif i.primitive in _INFIX:
            text = f"{given[0]} {_INFIX[i.primitive]} {given[1]}"
            if i.result.dtype is of and not of.is_floating_point:
                text = f"({kind})({text})"
        elif i.primitive == "neg":
            text = f"({kind})(-{given[0]})"
        else:
            text = f"d_{i.primitive}({', '.join(given)})"
        if i.primitive in _DIVISIONS and not of.is_floating_point:
            self._watch_division(given[1], i.operands[1])
        self.declare(i.result, text)

    def _converted(self, operand: Value, dtype: torch.dtype) -> str:
        text = self.value(operand)
        if dtype is torch.bool:
            return text if operand.dtype is torch.bool else f"{text} != 0"
        if dtype in (torch.bfloat16, torch.float16):
            short = "bf16" if dtype is torch.bfloat16 else "f16"
            return f"rounded_{short}((float){text})"
        if operand.dtype.is_floating_point and dtype in (torch.int8, torch.int16, torch.uint8):
            return f"({HELD_TYPES[dtype]})({'i64' if dtype is torch.uint8 else 'i32'}){text}"
        return text if operand.dtype is dtype else f"({HELD_TYPES[dtype]}){text}"

    # errors

    def _checked(self, i: CheckedIndex) -> None:
        name, size, wraps = i.result.name, size_text(i.size), "true" if i.wraps else "false"
        given = self.value(i.operand)
        self.watch.declarations.append(f"i64 {name}_low = 0, {name}_high = -1;")
        self.watch.clauses.append(f"reduction(min : {name}_low) reduction(max : {name}_high)")
        self.watch.checks.append(f"check_indices(run, {name}_low, {name}_high, {size}, {wraps});")
        self.lines.append(f"{name}_low = {given} < {name}_low ? {given} : {name}_low;")
        self.lines.append(f"{name}_high = {given} > {name}_high ? {given} : {name}_high;")
        # GCC 12 loads from wrong places where it vectorises a gather whose index comes from a comparison.
        hidden = given if i.operand in self.loaded else f"not_vectorised({given})"
        self.declare(i.result, f"checked_index({hidden}, {size}, {wraps})")

    def _watch_division(self, divisor: str, operand: Value | Number) -> None:
        if not isinstance(operand, Value) and operand != 0:
            return
        name = f"zero{len(self.watch.checks)}_{divisor.partition('[')[0]}"
        self.watch.declarations.append(f"i32 {name} = 0;")
        self.watch.clauses.append(f"reduction(| : {name})")
        self.watch.checks.append(f"if ({name}) fail_division(run);")
        self.lines.append(f"{name} |= {divisor} == 0;")
