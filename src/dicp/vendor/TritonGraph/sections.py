"""One nest, or one part of independent elements, as a function of Triton: what one program computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dicp.loops.index import Size, product
from dicp.loops.ir import CheckedIndex, Load, Loop, Phase, PhasePart, Reduce, RowNest, Scan, Store
from dicp.loops.primitives import held
from dicp.vendor.TritonGraph.accumulators import TileAccumulator
from dicp.vendor.TritonGraph.bodies import Columns, RowFrame, TileBodyWriter
from dicp.vendor.TritonGraph.expressions import KernelNumbers, power_above
from dicp.vendor.TritonGraph.tiles import ProgramTile, divided_up, reading_order

__all__ = ["KernelSection", "PartSection", "RowSection"]


@dataclass(frozen=True)
class KernelSection:
    """The body of a function, and how many programs run it."""

    lines: tuple[str, ...]
    programs: Size
    warps: int


def decomposed(
    loops: Sequence[Loop], linear: str, suffix: str, numbers: KernelNumbers
) -> tuple[list[str], dict[str, str]]:
    """The variables of loops, of the number of an iteration."""
    lines: list[str] = []
    names: dict[str, str] = {}
    inner: Size = 1
    for position, loop in reversed(list(enumerate(loops))):
        name = names[loop.variable] = f"{loop.variable}{suffix}"
        if loop.count == 1:
            lines.append(f"{name} = tl.zeros([1, 1], tl.int32) + {numbers.text(loop.begin)}")
            continue
        text = linear if inner == 1 else f"({linear} // {numbers.text(inner)})"
        if any(other.count != 1 for other in loops[:position]):
            text = f"{text} % {numbers.text(loop.count)}"
        if loop.begin != 0:
            text = f"{text} + {numbers.text(loop.begin)}"
        lines.append(f"{name} = {text}")
        inner = product((inner, loop.count))
    return lines, names


def _divides(block: int, total: Size) -> bool:
    return isinstance(total, int) and total % block == 0


class PartSection:
    """Elements that need nothing of each other: a tile of them in any order."""

    def __init__(
        self,
        rows: Sequence[Loop],
        part: PhasePart,
        memory: Mapping[str, torch.dtype],
        numbers: KernelNumbers,
        index_type: str,
    ) -> None:
        self.part, self.memory, self.numbers, self.index_type = part, memory, numbers, index_type
        self.rows, self.columns, self.tile = reading_order(rows, part)
        self.checks: list[CheckedIndex] = []

    def section(self, checks: list[CheckedIndex]) -> KernelSection:
        tile, numbers = self.tile, self.numbers
        row_total = product(loop.count for loop in self.rows)
        column_total = product(loop.count for loop in self.columns)
        across = divided_up(column_total, tile.columns)
        lines = [f"tile = pid.to({self.index_type})"]
        column = "tile"
        if self.rows:
            column = f"(tile % {numbers.text(across)})"
            row = f"(tile // {numbers.text(across)})"
            lines.append(f"row = {row} * {tile.rows} + tl.arange(0, {tile.rows})[:, None]")
        lines.append(f"column = {column} * {tile.columns} + tl.arange(0, {tile.columns})[None, :]")
        row_mask = column_mask = ""
        if self.rows and not _divides(tile.rows, row_total):
            row_mask = "row_mask"
            lines.append(f"row_mask = row < {numbers.text(row_total)}")
        if not _divides(tile.columns, column_total):
            column_mask = "column_mask"
            lines.append(f"column_mask = column < {numbers.text(column_total)}")
        more, row_names = decomposed(self.rows, "row", "", numbers)
        lines += more
        more, column_names = decomposed(self.columns, "column", "", numbers)
        lines += more
        frame = RowFrame(numbers, self.memory, tile.rows, row_mask, row_names, self.index_type, checks=checks)
        body = TileBodyWriter(frame, Columns(tile.columns, column_mask, column_names, "all"))
        for i in self.part.body:
            body.write(i)
        programs = product((divided_up(row_total, tile.rows) if self.rows else 1, across))
        return KernelSection((*lines, *body.lines), programs, tile.warps)


@dataclass
class RowSection:
    """Rows that stay whole: a few of them, phase by phase.

    With splits there are two sections: programs that accumulate a share of the columns each, and those that join what these
    left in the workspaces `w0, w1...`, and run what follows.
    """

    nest: RowNest
    number: int
    """Of the nest in its kernel."""
    tile: ProgramTile
    memory: Mapping[str, torch.dtype]
    numbers: KernelNumbers
    index_type: str
    workspaces: dict[str, tuple[torch.dtype, Size]]
    """Memory for what passes between programs, or does not fit in registers: it is added here."""
    lines: list[str] = field(default_factory=list)
    parts: int = 0
    known_columns: dict[object, Columns] = field(default_factory=dict)

    def section(self, checks: list[CheckedIndex]) -> KernelSection:
        """All phases."""
        self._begin(checks, "pid")
        for phase in self.nest.phases:
            self._phase(phase)
        return KernelSection(tuple(self.lines), self._programs(), self.tile.warps)

    def _programs(self) -> Size:
        return divided_up(self._rows(), self.tile.rows)

    def _rows(self) -> Size:
        return product(loop.count for loop in self.nest.rows)

    def _begin(self, checks: list[CheckedIndex], tile: str) -> None:
        block, total, numbers = self.tile.rows, self._rows(), self.numbers
        self.lines = [f"row = ({tile}).to({self.index_type}) * {block} + tl.arange(0, {block})[:, None]"]
        mask = "" if _divides(block, total) else "row_mask"
        if mask:
            self.lines.append(f"row_mask = row < {numbers.text(total)}")
        more, names = decomposed(self.nest.rows, "row", "", numbers)
        self.lines += more
        kept = frozenset(r.name for r in self.nest.scratch if self.tile.whole and self._is_kept(r.name))
        for r in self.nest.scratch:
            if r.name not in kept:
                name = f"{r.name}_of_{self.number}"
                self.workspaces[name] = held(r.dtype), product((total, r.size))
                self.lines.append(f"{r.name} = {name}")
                self.lines.append(f"{r.name}_row = row.to(tl.int64) * {numbers.text(r.size)}")
        memory = {**self.memory, **{r.name: r.dtype for r in self.nest.scratch}}
        self.frame = RowFrame(numbers, memory, block, mask, names, self.index_type, kept=kept, checks=checks)
        self.known_columns = {}
        self.parts = 0

    def _is_kept(self, name: str) -> bool:
        """Whether later phases load the elements of scratch in the columns that stored them."""
        stored: set[object] = set()
        for phase in self.nest.phases:
            for part in phase.parts:
                for i in part.body:
                    if isinstance(i, Load) and i.buffer == name:
                        if (part.columns, i.index) not in stored or i.when is not None:
                            return False
                    elif isinstance(i, Store) and i.buffer == name:
                        if i.when is not None:
                            return False
                        stored.add((part.columns, i.index))
        return True

    # phases

    def _phase(self, phase: Phase) -> None:
        if len(phase.parts) == 1 and not phase.parts[0].columns and not phase.reductions and not phase.scans:
            self._row(phase.parts[0], True)
            return
        joined: list[TileAccumulator] = []
        for number, part in enumerate(phase.parts):
            found = self._whole(part) if self.tile.whole else self._in_blocks(part)
            joined = found or joined
            self._join_parts(found, number, len(phase.parts))
        self._results(joined)
        if any(self._stores_scratch(part) for part in phase.parts):
            self.lines.append("tl.debug_barrier()")

    def _stores_scratch(self, part: PhasePart) -> bool:
        return any(
            isinstance(i, Store) and i.buffer.startswith("r") and i.buffer not in self.frame.kept
            for i in part.body
        )

    def _row(self, part: PhasePart, stores: bool) -> None:
        body = TileBodyWriter(self.frame, None, stores)
        for i in part.body:
            body.write(i)
        self.lines += body.lines

    def _join_parts(self, found: Sequence[TileAccumulator], number: int, count: int) -> None:
        """What the parts of a phase accumulated, one after the other; of the last part it is that of all."""
        for a in found:
            if isinstance(a.instruction, Reduce) and count > 1:
                if number:
                    self.lines.append(f"{a.names('s')} = {a.join}({a.names('p')}, {a.names('s')})")
                if number < count - 1:
                    self.lines.append(f"{a.names('p')} = {a.names('s')}")

    def _results(self, accumulators: Sequence[TileAccumulator]) -> None:
        for a in accumulators:
            if isinstance(a.instruction, Reduce):
                self.lines += a.finish()
                for result in a.instruction.results:
                    self.frame.values[result.name] = result.name, 1

    def _tile_text(self, columns: int) -> str:
        return f"[{self.tile.rows}, {columns}]"

    def _body(self, part: PhasePart, columns: Columns) -> tuple[list[str], list[TileAccumulator]]:
        """The lines of one tile of columns; states of reductions are named, not yet joined."""
        body, found = TileBodyWriter(self.frame, columns), []
        for i in part.body:
            if isinstance(i, (Reduce, Scan)):
                accumulator = TileAccumulator(i, tuple(body.value(operand) for operand in i.operands))
                body.lines += accumulator.element(self._tile_text(columns.block), body.full_mask())
                found.append(accumulator)
                if isinstance(i, Scan):
                    body.lines += accumulator.scanned()
                    for result in i.results:
                        self.frame.values[result.name] = result.name, 3
            else:
                body.write(i)
        return body.lines, found

    def _whole(self, part: PhasePart) -> list[TileAccumulator]:
        columns = self.known_columns.get(part.columns)
        if columns is None:
            total = product(loop.count for loop in part.columns)
            assert isinstance(total, int), "all columns at once are of a known number"
            suffix = f"_{self.parts}"
            self.parts += 1
            block = power_above(total)
            self.lines.append(f"column{suffix} = tl.arange(0, {block})[None, :]")
            mask = "" if block == total else f"mask{suffix}"
            if mask:
                self.lines.append(f"{mask} = column{suffix} < {total}")
            more, names = decomposed(part.columns, f"column{suffix}", suffix, self.numbers)
            self.lines += more
            columns = Columns(block, mask, names, part.columns)
            self.known_columns[part.columns] = columns
        lines, found = self._body(part, columns)
        for a in found:
            if isinstance(a.instruction, Scan):
                self.lines += a.begin(self._tile_text(1))
        self.lines += lines
        for a in found:
            if isinstance(a.instruction, Reduce):
                self.lines += a.along("e")
        return found

    def _in_blocks(self, part: PhasePart, begin: str = "0", end: str = "") -> list[TileAccumulator]:
        total = product(loop.count for loop in part.columns)
        block, suffix = self.tile.columns, f"_{self.parts}"
        if isinstance(total, int):
            block = min(block, power_above(total))
        self.parts += 1
        column = f"column{suffix}"
        last = end or self.numbers.text(total)
        mask = "" if _divides(block, total) and not end else f"mask{suffix}"
        inside = [f"{column} = (start{suffix} + tl.arange(0, {block})[None, :]).to({self.index_type})"]
        if mask:
            inside.append(f"{mask} = {column} < {last}")
        more, names = decomposed(part.columns, column, suffix, self.numbers)
        inside += more
        values, elements = dict(self.frame.values), dict(self.frame.elements)
        lines, found = self._body(part, Columns(block, mask, names, suffix))
        self.frame.values, self.frame.elements = values, elements
        inside += lines
        for a in found:
            reduces = isinstance(a.instruction, Reduce)
            self.lines += a.begin(self._tile_text(block if reduces else 1))
            if reduces:
                inside.append(a.update())
        self.lines.append(f"for start{suffix} in range({begin}, {last}, {block}):")
        self.lines += [f"    {line}" for line in inside]
        for a in found:
            if isinstance(a.instruction, Reduce):
                self.lines += a.along("a")
        return found

    # rows whose columns are shared

    def split_sections(self, checks: list[CheckedIndex]) -> tuple[KernelSection, KernelSection]:
        splits = self.tile.splits
        self._begin(checks, f"pid // {splits}")
        self.lines.append(f"share = pid % {splits}")
        position = next(n for n, phase in enumerate(self.nest.phases) if phase.parts[0].columns)
        before, over = self.nest.phases[:position], self.nest.phases[position]
        for phase in before:
            self._row(phase.parts[0], False)
        joined: list[TileAccumulator] = []
        for number, part in enumerate(over.parts):
            total = product(loop.count for loop in part.columns)
            share = self.numbers.text(
                product((divided_up(total, splits * self.tile.columns), self.tile.columns))
            )
            self.lines.append(f"first_{number} = share * {share}")
            self.lines.append(
                f"last_{number} = tl.minimum(first_{number} + {share}, {self.numbers.text(total)})"
            )
            found = self._in_blocks(part, f"first_{number}", f"last_{number}")
            joined = found
            self._join_parts(found, number, len(over.parts))
        names = self._workspaces(joined)
        mask = ", mask=row_mask" if self.frame.mask else ""
        for a in joined:
            for n, name in enumerate(names[a.name]):
                self.lines.append(
                    f"tl.store({name} + row.to(tl.int64) * {splits} + share, {a.name}_s{n}{mask})"
                )
        first = KernelSection(tuple(self.lines), product((self._programs(), splits)), self.tile.warps)
        self._begin(checks, "pid")
        for phase in before:
            self._row(phase.parts[0], True)
        self._join_shares(joined, names)
        for phase in self.nest.phases[position + 1 :]:
            self._phase(phase)
        return first, KernelSection(tuple(self.lines), self._programs(), 4)

    def _workspaces(self, accumulators: Sequence[TileAccumulator]) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for a in accumulators:
            for state in a.states():
                name = f"w{len(self.workspaces)}"
                self.workspaces[name] = state.dtype, product((self._rows(), self.tile.splits))
                names.setdefault(a.name, []).append(name)
        return names

    def _join_shares(
        self, accumulators: Sequence[TileAccumulator], names: Mapping[str, Sequence[str]]
    ) -> None:
        splits = self.tile.splits
        mask = ", mask=row_mask, other=0" if self.frame.mask else ""
        self.lines.append(f"shares = row.to(tl.int64) * {splits} + tl.arange(0, {splits})[None, :]")
        for a in accumulators:
            for n, name in enumerate(names[a.name]):
                self.lines.append(f"{a.name}_e{n} = tl.load({name} + shares{mask})")
            self.lines += a.along("e")
            self.lines += a.finish()
            for result in a.instruction.results:
                self.frame.values[result.name] = result.name, 1
