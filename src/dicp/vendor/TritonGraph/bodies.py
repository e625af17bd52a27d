"""Instructions of a body as statements over tiles: values that are the same in a row or a column have that side of length 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sympy
import torch

from dicp.errors import UnsupportedError
from dicp.loops.index import Affine
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
from dicp.vendor.TritonGraph.expressions import (
    HELD_TYPES,
    STORED_TYPES,
    KernelNumbers,
    index_text,
    literal_text,
)
from dicp.vendor.TritonGraph.primitives import primitive_text

__all__ = ["COLUMN", "ROW", "Columns", "RowFrame", "TileBodyWriter"]

ROW, COLUMN = 1, 2
"""Sides of a tile along which a value differs."""


@dataclass(frozen=True)
class Columns:
    """The columns that a body is computed for at once."""

    block: int
    mask: str
    """Empty: all of them are there."""
    variables: Mapping[str, str]
    key: object
    """Equal where the same columns are meant."""


@dataclass
class RowFrame:
    """What all bodies of a nest share."""

    numbers: KernelNumbers
    memory: Mapping[str, torch.dtype]
    """Of parameters and scratch."""
    block: int
    mask: str
    variables: Mapping[str, str]
    index_type: str
    kept: frozenset[str] = frozenset()
    """Scratch that stays in registers; other scratch is memory, of which the row begins at `NAME_row`."""
    checks: list[CheckedIndex] = field(default_factory=list)
    """Instructions that note errors: each has two numbers of `errors`."""
    values: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The text of each value, and the sides along which it differs."""
    elements: dict[object, tuple[str, int]] = field(default_factory=dict)
    """Elements that are in registers."""


class TileBodyWriter:
    """Writes one body; without columns it is that of the row."""

    def __init__(self, frame: RowFrame, columns: Columns | None, stores: bool = True) -> None:
        self.frame, self.columns, self.stores = frame, columns, stores
        self.lines: list[str] = []

    # values

    def value(self, operand: Value | Number, dtype: torch.dtype | None = None) -> str:
        if isinstance(operand, Value):
            return self.frame.values[operand.name][0]
        assert dtype is not None
        return literal_text(operand, dtype)

    def axes(self, operands: Iterable[object]) -> int:
        found = 0
        for operand in operands:
            if isinstance(operand, Value):
                found |= self.frame.values[operand.name][1]
        return found

    def declare(self, value: Value, text: str, axes: int) -> None:
        self.lines.append(f"{value.name} = {text}")
        self.frame.values[value.name] = value.name, axes

    # indices

    def variable(self, name: str) -> str:
        if self.columns is not None and name in self.columns.variables:
            return self.columns.variables[name]
        if name in self.frame.variables:
            return self.frame.variables[name]
        return f"{self.frame.values[name][0]}.to({self.frame.index_type})"

    def index(self, index: Affine) -> tuple[str, int]:
        axes = 0
        for name in index.variables():
            if self.columns is not None and name in self.columns.variables:
                axes |= COLUMN
            elif name in self.frame.variables:
                axes |= ROW
            else:
                axes |= self.frame.values[name][1]
        return index_text(index, self.variable, self.frame.numbers.text), axes

    def tile(self, axes: int) -> str:
        columns = self.columns.block if self.columns is not None else 1
        return f"[{self.frame.block if axes & ROW else 1}, {columns if axes & COLUMN else 1}]"

    def mask(self, axes: int, *more: str) -> str:
        """Where a tile that differs along these sides has elements; empty: everywhere."""
        parts = [self.frame.mask if axes & ROW else ""]
        parts.append(self.columns.mask if axes & COLUMN and self.columns is not None else "")
        return " & ".join(part for part in (*parts, *more) if part)

    def full_mask(self) -> str:
        return self.mask(ROW | COLUMN)

    def address(self, buffer: str, index: Affine, axes: int) -> tuple[str, int]:
        """Pointers, of a tile that differs at least along `axes`."""
        at, own = self.index(index)
        if buffer in self.frame.memory and buffer.startswith("r"):
            at, own = f"{buffer}_row + {at}", own | ROW
        if own | axes != own or not own:
            at = f"{at} + tl.zeros({self.tile(own | axes)}, {self.frame.index_type})"
        return f"{buffer} + {at}", own | axes

    # instructions

    def write(self, i: Instruction) -> None:
        match i:
            case Load():
                self._load(i)
            case Store():
                self._store(i)
            case Compute():
                self._compute(i)
            case Convert(result, operand, dtype):
                self.declare(
                    result, converted(self.value(operand), operand.dtype, dtype), self.axes((operand,))
                )
            case LiteralValue(result, number):
                self.declare(result, self._number(number, result.dtype), 0)
            case IndexValue(result, index):
                text, axes = self.index(index)
                self.declare(result, f"({text}) + tl.zeros([1, 1], tl.int64)", axes)
            case CheckedIndex():
                self._checked(i)
            case _:
                raise UnsupportedError(f"no code for {type(i).__name__} here")

    def _element(self, buffer: str, index: Affine) -> object | None:
        """What an element is known by, where only the loops say which it is."""
        loops = {*self.frame.variables, *(self.columns.variables if self.columns is not None else ())}
        if not set(index.variables()) <= loops:
            return None
        in_columns = self.columns is not None and bool(set(index.variables()) & set(self.columns.variables))
        return (buffer, index, self.columns.key if in_columns and self.columns is not None else None)

    def _load(self, i: Load) -> None:
        key = self._element(i.buffer, i.index) if i.when is None else None
        known = self.frame.elements.get(key) if key is not None else None
        if known is not None:
            self.frame.values[i.result.name] = known
            return
        dtype = self.frame.memory[i.buffer]
        when = "" if i.when is None else self.value(i.when)
        address, axes = self.address(i.buffer, i.index, self.axes((i.when,)))
        mask = self.mask(axes, when)
        text = f"tl.load({address}, mask={mask}, other=0)" if mask else f"tl.load({address})"
        if dtype in (torch.bfloat16, torch.float16):
            text += ".to(tl.float32)"
        elif dtype is torch.bool:
            text = f"({text} != 0)"
        if when and i.otherwise != 0:
            text = f"tl.where({when}, {text}, {literal_text(i.otherwise, i.result.dtype)})"
        self.declare(i.result, text, axes)
        if key is not None:
            self.frame.elements[key] = self.frame.values[i.result.name]

    def _store(self, i: Store) -> None:
        if i.buffer in self.frame.kept:
            text, axes = self.frame.values[i.operand.name]
            if self.frame.memory[i.buffer] is torch.bool:
                text = f"({text} != 0)"
            self.frame.elements[self._element(i.buffer, i.index)] = text, axes
            return
        if not self.stores:
            return
        when = "" if i.when is None else self.value(i.when)
        address, axes = self.address(i.buffer, i.index, self.axes((i.operand, i.when)))
        dtype = self.frame.memory[i.buffer]
        if i.buffer.startswith("r") and dtype in (torch.bfloat16, torch.float16):
            dtype = torch.float32
        mask = self.mask(axes, when)
        stored = f"tl.broadcast_to({self.value(i.operand)}, {self.tile(axes)}).to({STORED_TYPES[dtype]})"
        self.lines.append(f"tl.store({address}, {stored}{f', mask={mask}' if mask else ''})")

    def _number(self, number: Number | sympy.Expr, dtype: torch.dtype) -> str:
        if isinstance(number, (bool, int, float)):
            return literal_text(number, dtype)
        if number.is_Boolean:
            known = number in (True, sympy.true)
            if not known and number not in (False, sympy.false):
                raise UnsupportedError(f"{number} is a condition on sizes")
            return literal_text(known, dtype)
        if number.is_Integer or number.is_Rational or number.is_Float:
            return literal_text(int(number) if number.is_Integer else float(number), dtype)
        if number.is_integer:
            text = f"({self.frame.numbers.text(number)} + tl.zeros([1, 1], tl.int64))"
            return f"({text} != 0)" if dtype is torch.bool else f"{text}.to({HELD_TYPES[dtype]})"
        wide = f"(tl.zeros([1, 1], tl.int64) + {self.frame.numbers.of_float(number)})"
        text = f"{wide}.to(tl.float64, bitcast=True)"
        return f"({text} != 0)" if dtype is torch.bool else f"{text}.to({HELD_TYPES[dtype]})"

    def _compute(self, i: Compute) -> None:
        values = i.operands[1:] if i.primitive == "select" else i.operands
        of = next((o.dtype for o in values if isinstance(o, Value)), i.result.dtype)
        given = [self.value(o, of) for o in i.operands]
        self.declare(i.result, primitive_text(i.primitive, given, of), self.axes(i.operands))

    def _checked(self, i: CheckedIndex) -> None:
        """An index of data; a bad one is noted in `errors` and becomes 0."""
        axes = self.axes((i.operand,))
        name, given, size = i.result.name, self.value(i.operand), self.frame.numbers.text(i.size)
        lowest = f"-{size}" if i.wraps else "0"
        self.lines.append(f"{name}_bad = ({given} < {lowest}) | ({given} >= {size})")
        bad = " & ".join(part for part in (f"{name}_bad", self.mask(axes)) if part)
        place = 2 * len(self.frame.checks)
        self.frame.checks.append(i)
        zeros = f"tl.zeros({self.tile(axes)}, tl.int64)"
        self.lines.append(f"tl.store(errors + {place} + {zeros}, {given} + {zeros}, mask={bad})")
        self.lines.append(f"tl.store(errors + {place + 1} + {zeros}, {size} + {zeros}, mask={bad})")
        found = f"tl.where({given} < 0, {given} + {size}, {given})" if i.wraps else given
        self.declare(i.result, f"tl.where({name}_bad, 0, {found}).to(tl.int64)", axes)


def converted(text: str, source: torch.dtype, dtype: torch.dtype) -> str:
    """As torch's `to`; 16-bit floats stay in float32."""
    if dtype is torch.bool:
        return text if source is torch.bool else f"({text} != 0)"
    if dtype in (torch.bfloat16, torch.float16):
        return f"{text}.to(tl.float32).to({STORED_TYPES[dtype]}).to(tl.float32)"
    if source.is_floating_point and dtype in (torch.int8, torch.int16, torch.uint8):
        return f"{text}.to(tl.{'int64' if dtype is torch.uint8 else 'int32'}).to({HELD_TYPES[dtype]})"
    return text if source is dtype else f"{text}.to({HELD_TYPES[dtype]})"
