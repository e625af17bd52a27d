"""Nests with fewer loops and instructions that do the same: neighbouring loops that move evenly over memory are one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from dicp.loops.index import Affine, Size, product
from dicp.loops.ir import (
    CheckedIndex,
    IndexValue,
    Instruction,
    LiteralValue,
    Load,
    Loop,
    Phase,
    PhasePart,
    Reduce,
    RowNest,
    Scan,
    Store,
)
from dicp.loops.verify import index_of, operands_of, results_of

__all__ = ["kernel_sizes", "simplified_nest"]

ZERO = Affine()


def simplified_nest(nest: RowNest, fixed: bool) -> RowNest:
    """`fixed` is false: rows and columns may be exchanged, as one phase of independent elements has them."""
    nest = without_dead(nest)
    nest = _merged_rows(nest)
    nest = replace(nest, phases=tuple(_merged_phase(phase) for phase in nest.phases))
    if not fixed:
        nest = _rows_into_columns(nest)
    return replace(_renamed(nest), lanes=_has_lanes(nest) if fixed else False)


def without_dead(nest: RowNest) -> RowNest:
    """Without instructions whose results nobody reads."""
    needed: set[str] = set()
    phases: list[Phase] = []
    for phase in reversed(nest.phases):
        parts = []
        for part in phase.parts:
            body: list[Instruction] = []
            for i in reversed(part.body):
                lives = isinstance(i, (Store, CheckedIndex, Reduce)) or any(
                    r.name in needed for r in results_of(i)
                )
                if lives:
                    body.append(i)
                    needed |= {v.name for v in operands_of(i)}
                    index = index_of(i)
                    needed |= set() if index is None else set(index.variables())
            if body:
                parts.append(PhasePart(part.columns, tuple(reversed(body))))
        if parts:
            phases.append(Phase(tuple(parts)))
    return replace(nest, phases=tuple(reversed(phases)))


def _indices(parts: Iterable[PhasePart]) -> Iterator[Affine]:
    for part in parts:
        for i in part.body:
            index = index_of(i)
            if index is not None:
                yield index


def _even(left: Loop, right: Loop, indices: Iterable[Affine]) -> bool:
    """Whether all indices move over both loops as over one."""
    if left.begin != 0 or right.begin != 0:
        return False
    for index in indices:
        for variable, _ in index.terms:
            if not isinstance(variable, str) and {left.variable, right.variable} & set(
                variable.operand.variables()
            ):
                return False
        if index.factor(left.variable) != product((index.factor(right.variable), right.end)):
            return False
    return True


def _merged(loops: tuple[Loop, ...], indices: list[Affine]) -> tuple[tuple[Loop, ...], dict[str, Affine]]:
    """Fewer loops, and what becomes of the variables."""
    result: list[Loop] = []
    gone: dict[str, Affine] = {}
    for right in loops:
        loop = right
        while result and _even(result[-1], loop, indices):
            left = result.pop()
            gone[left.variable] = ZERO
            loop = Loop(loop.variable, 0, product((left.end, loop.end)))
            indices = [index.substitute({left.variable: ZERO}) for index in indices]
        result.append(loop)
    return tuple(result), gone


def _substituted(part: PhasePart, values: Mapping[str, Affine]) -> PhasePart:
    if not values:
        return part
    body: list[Instruction] = []
    for i in part.body:
        if isinstance(i, (Load, Store, IndexValue)):
            body.append(replace(i, index=i.index.substitute(values)))
        else:
            body.append(i)
    return replace(part, body=tuple(body))


def _merged_rows(nest: RowNest) -> RowNest:
    parts = [part for phase in nest.phases for part in phase.parts]
    rows, gone = _merged(nest.rows, list(_indices(parts)))
    phases = tuple(Phase(tuple(_substituted(p, gone) for p in phase.parts)) for phase in nest.phases)
    return replace(nest, rows=rows, phases=phases)


def _merged_phase(phase: Phase) -> Phase:
    parts = []
    for part in phase.parts:
        columns, gone = _merged(part.columns, list(_indices([part])))
        parts.append(_substituted(PhasePart(columns, part.body), gone))
    return Phase(tuple(parts))


def _rows_into_columns(nest: RowNest) -> RowNest:
    """The last loop over rows joined to the loop over columns where it can be."""
    if len(nest.phases) != 1 or len(nest.phases[0].parts) != 1 or nest.scratch:
        return nest
    part = nest.phases[0].parts[0]
    if any(isinstance(i, (Reduce, Scan)) for i in part.body) or not nest.rows:
        return nest
    if not part.columns:
        return replace(nest, rows=nest.rows[:-1], phases=(Phase((replace(part, columns=nest.rows[-1:]),)),))
    columns, gone = _merged((nest.rows[-1], *part.columns), list(_indices([part])))
    if nest.rows[-1].variable not in gone:
        return nest
    joined = _substituted(PhasePart(columns, part.body), gone)
    return replace(nest, rows=nest.rows[:-1], phases=(Phase((joined,)),))


def _renamed(nest: RowNest) -> RowNest:
    """Loops in the order of their names."""
    rows = {loop.variable: f"i{k}" for k, loop in enumerate(nest.rows)}

    def part(old: PhasePart) -> PhasePart:
        columns = {loop.variable: f"j{k}" for k, loop in enumerate(old.columns)}
        names = {a: Affine.of(b) for a, b in {**rows, **columns}.items() if a != b}
        loops = tuple(replace(loop, variable=columns[loop.variable]) for loop in old.columns)
        return replace(_substituted(old, names), columns=loops)

    return replace(
        nest,
        rows=tuple(replace(loop, variable=rows[loop.variable]) for loop in nest.rows),
        phases=tuple(Phase(tuple(map(part, phase.parts))) for phase in nest.phases),
    )


def _has_lanes(nest: RowNest) -> bool:
    """Whether neighbours in memory are of different rows rather than of one."""
    if not nest.rows:
        return False
    row, votes = nest.rows[-1].variable, 0
    for phase in nest.phases:
        for part in phase.parts:
            if part.columns:
                column = part.columns[-1].variable
                for i in part.body:
                    if isinstance(i, (Load, Store)) and not i.buffer.startswith("r"):
                        strides = i.index.factor(row), i.index.factor(column)
                        votes += (strides[0] == 1) - (strides[1] == 1)
    return votes > 0


def kernel_sizes(nests: Iterable[RowNest]) -> Iterator[Size]:
    """All numbers in nests that may be symbolic."""
    for nest in nests:
        yield from (size for loop in nest.rows for size in (loop.begin, loop.end))
        yield from (buffer.size for buffer in nest.scratch)
        for phase in nest.phases:
            for part in phase.parts:
                yield from (size for loop in part.columns for size in (loop.begin, loop.end))
                for i in part.body:
                    index = index_of(i)
                    if index is not None:
                        yield from index.sizes()
                    if isinstance(i, CheckedIndex):
                        yield i.size
                    if isinstance(i, LiteralValue) and not isinstance(i.number, (bool, int, float)):
                        yield i.number
