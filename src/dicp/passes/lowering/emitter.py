"""Appends the instructions of a nest: to the body over columns, or to that of the row where no column matters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

import sympy
import torch
from torch.fx import Node

from dicp.loops.index import Affine, Size
from dicp.loops.ir import (
    CheckedIndex,
    Compute,
    Convert,
    IndexValue,
    Instruction,
    LiteralValue,
    Load,
    Reduce,
    Scan,
    ScanKind,
    Store,
)
from dicp.loops.primitives import Number, Value, held, result_dtype
from dicp.passes.lowering.definitions import PieceRanges
from dicp.passes.lowering.values import Index, address_of, dtype_of

__all__ = ["Emitter", "Parameters"]

Key = tuple[Hashable, ...]


@dataclass
class Parameters:
    """The buffers of a kernel, in the order in which they are first named."""

    names: dict[Node, str] = field(default_factory=dict)

    def name(self, root: Node) -> str:
        return self.names.setdefault(root, f"p{len(self.names)}")


@dataclass
class _Level:
    """A body with what is known in it."""

    instructions: list[Instruction] = field(default_factory=list)
    known: dict[Key, Value] = field(default_factory=dict)


class Emitter:
    """Is a `Body` of definitions; equal instructions are made once."""

    def __init__(
        self,
        ranges: PieceRanges,
        parameters: Parameters,
        root: Callable[[Node], Node],
        rows: Iterable[str],
        hoists: bool,
    ) -> None:
        self.ranges, self.parameters, self.root = ranges, parameters, root
        self.row, self.column = _Level(), _Level()
        self.row_names = set(rows)
        """Variables of rows, and values that are the same in the whole row."""
        self.hoists = hoists
        """Whether what no column matters to is computed once a row."""
        self.in_row = False
        """Whether all is appended to the row's body."""
        self.count = 0

    def new(self, dtype: torch.dtype) -> Value:
        self.count += 1
        return Value(f"t{self.count - 1}", dtype)

    def row_result(self, value: Value) -> Value:
        """Makes a value known in the whole row."""
        self.row_names.add(value.name)
        return value

    def begin_part(self) -> None:
        self.column = _Level()

    def take_row(self) -> tuple[Instruction, ...]:
        """The instructions of the row's body, which a new one follows; its values stay known."""
        instructions = tuple(self.row.instructions)
        self.row.instructions = []
        return instructions

    def _emit(
        self,
        key: Key,
        dtype: torch.dtype,
        needs: Iterable[str],
        make: Callable[[Value], Instruction],
        hoists: bool = True,
    ) -> Value:
        level = self.column
        if self.in_row or (self.hoists and hoists and all(name in self.row_names for name in needs)):
            level = self.row
        known = self.row.known.get(key) or level.known.get(key)
        if known is None:
            known = level.known[key] = self.new(dtype)
            level.instructions.append(make(known))
            if level is self.row:
                self.row_names.add(known.name)
        return known

    # what definitions and formulas call

    def op(self, primitive: str, *operands: Value | Number, dtype: torch.dtype | None = None) -> Value:
        values = [o for o in (operands[1:] if primitive == "select" else operands) if isinstance(o, Value)]
        computed_in = values[0].dtype if values else dtype
        if computed_in is None:
            raise TypeError(f"{primitive} of numbers alone needs a dtype")
        key = ("op", primitive, *(o if isinstance(o, Value) else (type(o), repr(o)) for o in operands))
        needs = [o.name for o in operands if isinstance(o, Value)]
        result = result_dtype(primitive, computed_in)
        return self._emit(key, result, needs, lambda r: Compute(r, primitive, operands))

    def constant(self, value: Number, dtype: torch.dtype) -> Value:
        return self.literal(value, dtype)

    def literal(self, number: Number | sympy.Expr, dtype: torch.dtype) -> Value:
        key = ("literal", type(number).__name__, repr(number), dtype)
        return self._emit(key, dtype, (), lambda r: LiteralValue(r, number), hoists=False)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype is dtype:
            return value
        key = ("cast", value, dtype)
        return self._emit(key, held(dtype), (value.name,), lambda r: Convert(r, value, dtype))

    def index(self, index: Affine) -> Value:
        return self._emit(
            ("index", index), torch.int64, index.variables(), lambda r: IndexValue(r, index), hoists=False
        )

    def checked(self, operand: Value, size: Size, wraps: bool = True) -> Affine:
        key = ("checked", operand, size, wraps)
        value = self._emit(key, torch.int64, (operand.name,), lambda r: CheckedIndex(r, operand, size, wraps))
        return Affine.of(value.name)

    def memory(self, node: Node, index: Index) -> Value:
        root = self.root(node)
        return self.load(self.parameters.name(root), address_of(node, root, index), dtype_of(node))

    # what the writer of a nest calls

    def load(self, buffer: str, at: Affine, dtype: torch.dtype) -> Value:
        hoists = buffer.startswith("p")
        return self._emit(
            ("load", buffer, at), held(dtype), at.variables(), lambda r: Load(r, buffer, at), hoists
        )

    def store(self, buffer: str, at: Affine, value: Value) -> None:
        self.append(Store(buffer, at, value))

    def append(self, instruction: Store | Reduce) -> None:
        (self.row if self.in_row else self.column).instructions.append(instruction)

    def scan(self, kind: ScanKind, operands: tuple[Value, ...]) -> Value:
        result = self.new(operands[0].dtype)
        self.column.instructions.append(Scan((result,), kind, operands))
        return result
