"""Nests whose neighbouring rows are neighbours in memory: a vector of rows at a time, values of the row are arrays of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from dicp.loops.index import Affine, Size, product
from dicp.loops.ir import Phase, PhasePart, Reduce, RowNest, Scan
from dicp.loops.primitives import Value, held
from dicp.loops.verify import index_of, operands_of, results_of
from dicp.vendor.HostGraph.bodies import BodyWriter, type_of
from dicp.vendor.HostGraph.expressions import HELD_TYPES, literal_text, size_text
from dicp.vendor.HostGraph.nests import GRAIN, loop_head, neutral, odometer

__all__ = ["LANES", "LanesWriter"]

LANES = 128
"""Rows at a time; the accumulators of a few such vectors stay in the fastest cache."""
_LONG = 1024
"""Columns from which on floats are summed in double."""


@dataclass
class _LaneAccumulator:
    declared: list[str] = field(default_factory=list)
    initial: list[str] = field(default_factory=list)
    column: list[str] = field(default_factory=list)
    """Before the lanes of a column."""
    update: list[str] = field(default_factory=list)
    final: list[str] = field(default_factory=list)


class LanesWriter:
    def __init__(self, nest: RowNest, memory: dict[str, torch.dtype]) -> None:
        self.nest, self.memory = nest, memory
        self.kept = _row_values(nest)

    def extent(self) -> tuple[str, str]:
        """How many blocks of lanes there are, and how many of them are worth a thread."""
        outer = product(loop.count for loop in self.nest.rows[:-1])
        count = f"({size_text(outer)}) * ((({size_text(self.nest.rows[-1].count)}) + {LANES - 1}) / {LANES})"
        parts = [part for phase in self.nest.phases for part in phase.parts]
        work: Size = sum(product(loop.count for loop in part.columns) for part in parts)
        return count, f"{GRAIN} / (({size_text(work)}) * {LANES} + 1) + 1"

    def lines(self) -> Iterator[str]:
        *outer, last = self.nest.rows
        v = last.variable
        blocks = f"((({size_text(last.count)}) + {LANES - 1}) / {LANES})"
        for r in self.nest.scratch:
            kind = HELD_TYPES[held(r.dtype)]
            yield f"const Scratch {r.name}_memory(sizeof({kind}) * {LANES} * ({size_text(r.size)}), run);"
            yield f"if (!{r.name}_memory.begin) return;"
            yield f"{kind}* const __restrict {r.name} = ({kind}*){r.name}_memory.begin;"
        for name, value in self.kept.items():
            yield f"{type_of(value)} {name}[{LANES}];"
        declared, step = odometer(outer, f"begin / {blocks}")
        yield from declared
        yield f"i64 block = begin % {blocks};"
        yield "for (i64 row = begin; row < end; ++row) {"
        yield f"const i64 {v}_begin = {size_text(last.begin)} + block * {LANES};"
        yield f"const i64 width = size_minimum((i64){LANES}, {size_text(last.end)} - {v}_begin);"
        for phase in self.nest.phases:
            yield from self._phase(phase)
        yield f"if (++block == {blocks}) {{ block = 0; {' '.join(step)} }}"
        yield "}"

    def _loop(self, lines: list[str], clauses: list[str] | None = None) -> Iterator[str]:
        v = self.nest.rows[-1].variable
        yield f"#pragma omp simd {' '.join(clauses or [])}"
        yield "for (i64 lane = 0; lane < width; ++lane) {"
        if any(v in line for line in lines):
            yield f"const i64 {v} = {v}_begin + lane;"
        yield from lines
        yield "}"

    def _phase(self, phase: Phase) -> Iterator[str]:
        long = _is_long(phase)
        accumulators = {
            i.results[0].name: self._accumulator(i, long)
            for part in phase.parts
            for i in part.body
            if isinstance(i, (Reduce, Scan))
        }
        yield "{"
        for a in accumulators.values():
            yield from a.declared
        initial = [line for a in accumulators.values() for line in a.initial]
        if initial:
            yield from self._loop(initial)
        for part in phase.parts:
            yield from self._part(part, accumulators)
        final = [line for a in accumulators.values() for line in a.final]
        if final:
            yield from self._loop(final)
        yield "}"

    def _part(self, part: PhasePart, accumulators: dict[str, _LaneAccumulator]) -> Iterator[str]:
        body = BodyWriter(self.memory, {r.name for r in self.nest.scratch}, "lane", str(LANES))
        body.arrays = set(self.kept)
        used = []
        for i in part.body:
            if isinstance(i, (Reduce, Scan)):
                a = accumulators[i.results[0].name]
                used.append(a)
                operands = [body.value(operand) for operand in i.operands]
                body.lines += [line.format(*operands) for line in a.update]
            else:
                body.write(i)
        yield "{"
        yield from body.watch.declarations
        for loop in part.columns:
            yield loop_head(loop) + " {"
        yield from (line for a in used for line in a.column)
        yield from self._loop(body.lines, body.watch.clauses)
        yield from ("}" for _ in part.columns)
        yield from body.watch.checks
        yield "}"

    def _accumulator(self, i: Reduce | Scan, long: bool) -> _LaneAccumulator:
        """In `update`, {0} and {1} stand for the operands."""
        name, dtype, kind = i.results[0].name, i.operands[0].dtype, type_of(i.operands[0])
        a, at = f"{name}_a", f"{name}_a[lane]"
        scans = isinstance(i, Scan)
        if i.kind in ("sum", "prod"):
            wide = "double" if dtype.is_floating_point and (long or scans) else kind
            sign = "+" if i.kind == "sum" else "*"
            found = _LaneAccumulator([f"{wide} {a}[{LANES}];"], [f"{at} = {int(i.kind == 'prod')};"])
            found.update = [f"{at} = ({wide})({at} {sign} {{0}});"]
            texts = [f"({kind}){at}"]
        elif i.kind in ("any", "all"):
            found = _LaneAccumulator(
                [f"bool {a}[{LANES}];"], [f"{at} = {literal_text(i.kind == 'all', dtype)};"]
            )
            found.update = [f"{at} = {at} {'|' if i.kind == 'any' else '&'} {{0}};"]
            texts = [at]
        elif i.kind in ("argmax", "argmin") or (scans and i.kind in ("max", "min")):
            extreme, structure = i.kind[-3:], "RunningExtreme" if scans else "Extreme"
            structure = f"{structure}<{kind}, {'true' if extreme == 'max' else 'false'}>"
            found = _LaneAccumulator([f"{structure} {a}[{LANES}];"])
            found.initial = [f"{at} = {structure}{{{neutral(extreme, dtype)}, 0, true}};"]
            found.update = [f"{at}.add({{0}}, {{1}});"]
            texts = [f"{at}.value", f"{at}.position"]
        elif i.kind in ("max", "min"):
            found = _LaneAccumulator([f"{kind} {a}[{LANES}];"], [f"{at} = {neutral(i.kind, dtype)};"])
            found.update = [f"{at} = d_{i.kind}imum({at}, {{0}});"]
            texts = [at]
        elif scans:
            found = _LaneAccumulator([f"RunningLogSumExp<{kind}> {a}[{LANES}];"])
            found.initial = [f"{at} = RunningLogSumExp<{kind}>();"]
            found.update = [f"{at}.add({{0}});"]
            texts = [f"{at}.value()"]
        elif i.kind == "welford":
            found = _LaneAccumulator([f"{kind} {a}[{LANES}], {name}_s[{LANES}];", f"i64 {name}_n = 0;"])
            found.initial = [f"{at} = 0; {name}_s[lane] = 0;"]
            found.column = [f"const {kind} {name}_i = 1 / ({kind})++{name}_n;"]
            found.update = [f"lane_welford({at}, {name}_s[lane], {{0}}, {name}_i);"]
            texts = [at, f"{name}_s[lane]"]
        else:
            found = _LaneAccumulator([f"{kind} {a}[{LANES}], {name}_s[{LANES}];"])
            found.initial = [f"{at} = {neutral('max', dtype)}; {name}_s[lane] = 0;"]
            found.update = [f"lane_logsumexp({at}, {name}_s[lane], {{0}});"]
            texts = [at, f"{name}_s[lane]"]
        pairs = list(zip(i.results, texts, strict=True))
        if scans:
            found.update += [f"const {type_of(r)} {r.name} = {text};" for r, text in pairs]
        else:
            found.final = [f"{r.name}[lane] = {text};" for r, text in pairs if r.name in self.kept]
        return found


def _is_long(phase: Phase) -> bool:
    total: Size = sum(product(loop.count for loop in part.columns) for part in phase.parts)
    return not isinstance(total, int) or total > _LONG


def _row_values(nest: RowNest) -> dict[str, Value]:
    """Values of the row that another body reads."""
    made: dict[str, tuple[Value, int]] = {}
    kept: dict[str, Value] = {}
    number = 0
    for phase in nest.phases:
        for part in phase.parts:
            number += 1
            for i in part.body:
                index = index_of(i)
                names = [o.name for o in operands_of(i)] + list((index or Affine()).variables())
                for name in names:
                    if name in made and made[name][1] != number:
                        kept[name] = made[name][0]
                if not part.columns or isinstance(i, Reduce):
                    for value in results_of(i):
                        made.setdefault(value.name, (value, -1 if isinstance(i, Reduce) else number))
    return kept
