"""A kernel as functions of C++: one for each nest, over a range of its rows, and one that divides these among threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from dicp.loops.index import Size, product
from dicp.loops.ir import CheckedIndex, Instruction, LoopKernel, Phase, PhasePart, Reduce, RowNest, Scan
from dicp.loops.primitives import held
from dicp.vendor.HostGraph.accumulators import BLOCK, Accumulator, reduction, scan
from dicp.vendor.HostGraph.bodies import BodyWriter, type_of
from dicp.vendor.HostGraph.expressions import HELD_TYPES, STORED_TYPES, size_text
from dicp.vendor.HostGraph.lanes import LanesWriter
from dicp.vendor.HostGraph.nests import GRAIN, loop_head, odometer

__all__ = ["kernel_code"]

STACK = 32768
"""Bytes of scratch that a row may have on the stack."""


def kernel_code(kernel: LoopKernel, name: str) -> str:
    """The kernel as `static void NAME(const NAME_arguments&)`."""
    members = [
        f"{'' if p.written else 'const '}{STORED_TYPES[p.dtype]}* {p.name};" for p in kernel.parameters
    ]
    members += [f"i64 {size};" for size in kernel.sizes]
    lines = [f"struct {name}_arguments {{", *members, "const Run* run;", "};"]
    calls: list[str] = []
    for number, nest in enumerate(_divided(kernel)):
        writer = _writer(kernel, nest)
        lines += _function(kernel, f"{name}_{number}", f"{name}_arguments", writer)
        calls += _empty_tables(nest)
        count, grain = writer.extent()
        calls.append(f"run_rows(*a.run, {name}_{number}_task, &a, {count}, {grain});")
    lines += [f"static void {name}(const {name}_arguments& a) {{", *_sizes(kernel), *calls, "}"]
    return "\n".join(lines) + "\n"


def _sizes(kernel: LoopKernel) -> Iterator[str]:
    yield from (f"const i64 {size} = a.{size};" for size in kernel.sizes)


def _divided(kernel: LoopKernel) -> Iterator[RowNest]:
    """Columns that nothing binds together become rows, so that threads can share them."""
    for nest in kernel.nests:
        if nest.rows or nest.scratch or len(nest.phases) != 1 or nest.lanes:
            yield nest
            continue
        (phase,) = nest.phases
        if phase.reductions or phase.scans or any(not part.columns for part in phase.parts):
            yield nest
            continue
        for part in phase.parts:
            inner = PhasePart(part.columns[-1:], part.body)
            yield replace(nest, rows=part.columns[:-1], phases=(Phase((inner,)),))


def _empty_tables(nest: RowNest) -> Iterator[str]:
    """Where data is an index into nothing there is no element to read in place of the wrong one: the rows do not run."""
    found: dict[str, None] = {}
    for phase in nest.phases:
        for part in phase.parts:
            for i in part.body:
                if isinstance(i, CheckedIndex) and (i.size == 0 or not isinstance(i.size, int)):
                    counts = (loop.count for loop in (*nest.rows, *part.columns))
                    tests = [f"({size_text(i.size)}) == 0", *(f"({size_text(n)}) > 0" for n in counts)]
                    found[f"if ({' && '.join(tests)}) return fail_index(*a.run, 0, 0);"] = None
    yield from found


def _writer(kernel: LoopKernel, nest: RowNest) -> _RowsWriter | LanesWriter:
    memory = {p.name: p.dtype for p in kernel.parameters} | {r.name: r.dtype for r in nest.scratch}
    return LanesWriter(nest, memory) if nest.lanes else _RowsWriter(nest, memory)


def _function(
    kernel: LoopKernel, name: str, arguments: str, writer: _RowsWriter | LanesWriter
) -> Iterator[str]:
    parameters = [
        f"{'' if p.written else 'const '}{STORED_TYPES[p.dtype]}* __restrict {p.name}"
        for p in kernel.parameters
    ]
    parameters += [f"const i64 {size}" for size in kernel.sizes]
    given = [f"a.{p.name}" for p in kernel.parameters] + [f"a.{size}" for size in kernel.sizes]
    yield f"ROWS void {name}({', '.join([*parameters, 'const i64 begin', 'const i64 end', 'const Run& run'])}) {{"
    yield from writer.lines()
    yield "}"
    yield f"static void {name}_task(void* context, i64 begin, i64 end) {{"
    yield f"const auto& a = *(const {arguments}*)context;"
    yield f"{name}({', '.join([*given, 'begin', 'end', '*a.run'])});"
    yield "}"


@dataclass
class _RowsWriter:
    """Rows one by one; the innermost loop over columns is vectorised."""

    nest: RowNest
    memory: dict[str, torch.dtype]

    def extent(self) -> tuple[str, str]:
        """How many rows there are, and how many of them are worth a thread."""
        rows, work = product(loop.count for loop in self.nest.rows), self._work()
        if self._flat:
            return size_text(work), str(GRAIN)
        if isinstance(work, int):
            return size_text(rows), str(max(1, GRAIN // max(work, 1)))
        return size_text(rows), f"{GRAIN} / ({size_text(work)} + 1) + 1"

    def _work(self) -> Size:
        """Columns of a row."""
        parts = [part for phase in self.nest.phases for part in phase.parts]
        known = [product(loop.count for loop in part.columns) for part in parts]
        return sum(known)

    @property
    def _flat(self) -> bool:
        """One loop over columns that threads divide."""
        nest = self.nest
        if nest.rows or nest.scratch or len(nest.phases) != 1 or len(nest.phases[0].parts) != 1:
            return False
        phase, columns = nest.phases[0], nest.phases[0].parts[0].columns
        return len(columns) == 1 and not phase.reductions and not phase.scans

    def lines(self) -> Iterator[str]:
        yield from self._scratch()
        if self._flat:
            (part,) = self.nest.phases[0].parts
            (loop,) = part.columns
            first = size_text(loop.begin)
            begin, end = ("begin", "end") if first == "0" else (f"{first} + begin", f"{first} + end")
            yield from self._part(part, [], False, (begin, end))
            return
        declared, step = odometer(self.nest.rows)
        yield from declared
        yield "for (i64 row = begin; row < end; ++row) {"
        for phase in self.nest.phases:
            yield from self._phase(phase)
        yield from step
        yield "}"

    def _scratch(self) -> Iterator[str]:
        known = [r.size * held(r.dtype).itemsize for r in self.nest.scratch if isinstance(r.size, int)]
        on_stack = len(known) == len(self.nest.scratch) and sum(known) <= STACK
        for r in self.nest.scratch:
            kind, size = HELD_TYPES[held(r.dtype)], size_text(r.size)
            if on_stack:
                yield f"alignas(64) {kind} {r.name}[{size_text(r.size) if r.size != 0 else '1'}];"
            else:
                yield f"const Scratch {r.name}_memory(sizeof({kind}) * ({size}), run);"
                yield f"if (!{r.name}_memory.begin) return;"
                yield f"{kind}* const __restrict {r.name} = ({kind}*){r.name}_memory.begin;"

    def _phase(self, phase: Phase) -> Iterator[str]:
        if len(phase.parts) == 1 and not phase.parts[0].columns:
            yield from self._once(phase.parts[0])
            return
        accumulators: dict[str, Accumulator] = {}
        long = bool(phase.reductions) and _is_long(phase)
        for part in phase.parts:
            found: list[Accumulator] = []
            lines = list(self._part(part, found, long))
            new = [a for a in found if a.before[0] not in accumulators]
            for a in new:
                accumulators[a.before[0]] = a
                yield from a.before
            yield from lines
        for a in accumulators.values():
            for result, text in a.results:
                yield f"const {type_of(result)} {result.name} = {text};"

    def _body(self) -> BodyWriter:
        return BodyWriter(self.memory, {r.name for r in self.nest.scratch})

    def _once(self, part: PhasePart) -> Iterator[str]:
        """A body without columns: its values are those of the row."""
        body = self._body()
        accumulators = self._instructions(part.body, body, "0", False)
        yield from (line for a in accumulators for line in (*a.before, *a.block_before))
        yield from body.watch.declarations
        yield from body.lines
        yield from body.watch.checks
        for a in accumulators:
            yield from (line.replace("count", "1") for line in a.block)
            yield from (f"const {type_of(r)} {r.name} = {text};" for r, text in a.results)

    def _instructions(
        self, instructions: Sequence[Instruction], body: BodyWriter, place: str, long: bool
    ) -> list[Accumulator]:
        found = []
        for i in instructions:
            if isinstance(i, (Reduce, Scan)):
                a = reduction(i, body, place, long) if isinstance(i, Reduce) else scan(i, body)
                body.lines += a.update
                found.append(a)
            else:
                body.write(i)
        return found

    def _part(
        self, part: PhasePart, found: list[Accumulator], long: bool, bounds: tuple[str, str] | None = None
    ) -> Iterator[str]:
        """The loops of a part; what it accumulates is added to `found`."""
        if not part.columns:
            yield "{"
            body = self._body()
            found += self._instructions(part.body, body, "0", long)
            yield from (line for a in found for line in a.block_before)
            yield from [*body.watch.declarations, *body.lines, *body.watch.checks]
            yield from (line.replace("count", "1") for a in found for line in a.block)
            yield "}"
            return
        body, inner = self._body(), part.columns[-1]
        v = inner.variable
        found += self._instructions(part.body, body, f"{v} - {v}_begin", long)
        ordered = any(isinstance(i, Scan) for i in part.body)
        blocked = any(a.block for a in found)
        clauses = [c for a in found for c in a.clauses] + body.watch.clauses
        pragma = "" if ordered else f"#pragma omp simd {' '.join(clauses)}"
        yield "{"
        yield from body.watch.declarations
        for loop in part.columns[:-1]:
            yield loop_head(loop) + " {"
        begin, end = bounds or (size_text(inner.begin), size_text(inner.end))
        if blocked:
            yield f"for (i64 {v}_begin = {begin}; {v}_begin < {end}; {v}_begin += {BLOCK}) {{"
            yield f"const i64 {v}_end = size_minimum({v}_begin + {BLOCK}, (i64)({end})), count = {v}_end - {v}_begin;"
            yield from (line for a in found for line in a.block_before)
            begin, end = f"{v}_begin", f"{v}_end"
        if pragma:
            yield pragma
        yield loop_head(inner, begin, end) + " {"
        yield from body.lines
        yield "}"
        if blocked:
            yield from (line for a in found for line in a.block)
            yield "}"
        yield from ("}" for _ in part.columns[:-1])
        yield from body.watch.checks
        yield "}"


def _is_long(phase: Phase) -> bool:
    """Whether one accumulator of a sum would add too many numbers."""
    total: Size = 0
    for part in phase.parts:
        total = total + product(loop.count for loop in part.columns)
    return not isinstance(total, int) or total > 4 * BLOCK
