"""How many rows and columns one program computes. Nothing is tried out: sizes decide, or what suits most where they are open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.utils._sympy.functions import FloorDiv

from dicp.loops.index import Size, product
from dicp.loops.ir import Load, Loop, PhasePart, Reduce, RowNest, Scan, Store
from dicp.vendor.TritonGraph.expressions import power_above

__all__ = ["ProgramTile", "divided_up", "part_tile", "reading_order", "row_tile", "stays_whole"]

ELEMENTS = 1024
"""Of a tile whose elements need nothing of each other: 8 for each thread of 4 warps."""
TRANSPOSED = 64
"""Rows and columns of a tile that is read in one order and stored in another."""
ROW_ELEMENTS = 2048
"""Of short rows that one program computes together."""
WIDEST_ROW = 16384
"""Columns that stay in registers."""
LONG_ROW_BLOCK = 4096
LANES = 64
LANE_COLUMNS = 32
MOST_SPLITS = 256


@dataclass(frozen=True)
class ProgramTile:
    """A program's share."""

    rows: int
    columns: int
    warps: int
    whole: bool = True
    """All columns at once; else in blocks, one after the other."""
    splits: int = 1
    """Programs that share the columns of a row; another launch joins what they accumulated."""


def divided_up(count: Size, by: int) -> Size:
    """How many pieces of a size cover a count."""
    if isinstance(count, int):
        return -(-count // by)
    return FloorDiv(count + (by - 1), by)


def _warps(elements: int) -> int:
    return max(1, min(16, elements // 512))


# --- elements that need nothing of each other ---


def stays_whole(nest: RowNest) -> bool:
    """Whether a row is bound together: by a reduction, a scan, scratch, or values of the row."""
    if nest.scratch or len(nest.phases) != 1:
        return True
    parts = nest.phases[0].parts
    return any(isinstance(i, (Reduce, Scan)) for part in parts for i in part.body)


def reading_order(
    rows: Sequence[Loop], part: PhasePart
) -> tuple[tuple[Loop, ...], tuple[Loop, ...], ProgramTile]:
    """The loops as rows and columns of a tile: all are columns, but where memory is read in another order than stored to."""
    loops = (*rows, *part.columns)
    other = _other_order(loops, part)
    if other is None:
        total = product(loop.count for loop in loops)
        return (), loops, part_tile(total)
    outer = (*(loop for loop in loops[:-1] if loop is not other), other)
    rows_block, columns_block = (_fitting(loop) for loop in (other, loops[-1]))
    warps = max(1, min(8, rows_block * columns_block // 256))
    return outer, loops[-1:], ProgramTile(rows_block, columns_block, warps)


def part_tile(total: Size) -> ProgramTile:
    """Of a line of elements."""
    columns = min(ELEMENTS, power_above(total)) if isinstance(total, int) else ELEMENTS
    return ProgramTile(1, columns, max(1, min(4, columns // 256)))


def _fitting(loop: Loop) -> int:
    return min(TRANSPOSED, power_above(loop.count)) if isinstance(loop.count, int) else TRANSPOSED


def _other_order(loops: Sequence[Loop], part: PhasePart) -> Loop | None:
    """The loop whose neighbours are neighbours in memory where those of the last loop are not."""
    if len(loops) < 2 or not _is_long(loops[-1]):
        return None
    last, votes = loops[-1].variable, dict.fromkeys((loop.variable for loop in loops[:-1]), 0)
    for i in part.body:
        if isinstance(i, (Load, Store)) and i.index.factor(last) != 1:
            for variable in votes:
                votes[variable] += i.index.factor(variable) == 1 and i.index.factor(last) != 0
    found = max(loops[:-1], key=lambda loop: votes[loop.variable])
    return found if votes[found.variable] and _is_long(found) else None


def _is_long(loop: Loop) -> bool:
    return not isinstance(loop.count, int) or loop.count >= 16


# --- rows ---


def _columns(nest: RowNest) -> Iterator[Size]:
    for phase in nest.phases:
        for part in phase.parts:
            if part.columns:
                yield product(loop.count for loop in part.columns)


def row_tile(nest: RowNest, dtypes: Sequence[torch.dtype], multiprocessors: int) -> ProgramTile:
    """Of a nest whose rows stay whole."""
    rows = product(loop.count for loop in nest.rows)
    columns = list(_columns(nest))
    known = [size for size in columns if isinstance(size, int)]
    widest = max((power_above(size) for size in known), default=1)
    wide = 2 if any(dtype.itemsize == 8 for dtype in dtypes) else 1
    if nest.lanes:
        tile = _lanes(rows, widest if len(known) == len(columns) else None)
    elif len(known) == len(columns) and widest * wide <= WIDEST_ROW:
        tile = _short_rows(rows, widest, wide, multiprocessors)
    else:
        block = LONG_ROW_BLOCK // wide
        tile = ProgramTile(1, block, _warps(block), whole=False)
    return replace(tile, splits=_splits(nest, rows, columns, tile, multiprocessors))


def _short_rows(rows: Size, widest: int, wide: int, multiprocessors: int) -> ProgramTile:
    together = max(1, ROW_ELEMENTS // wide // widest)
    if isinstance(rows, int):
        together = min(together, power_above(rows))
        while together > 1 and rows < together * multiprocessors * 2:
            together //= 2
    return ProgramTile(together, widest, _warps(together * widest * wide))


def _lanes(rows: Size, widest: int | None) -> ProgramTile:
    lanes = min(LANES, power_above(rows)) if isinstance(rows, int) else LANES
    whole = widest is not None and widest <= 2 * LANE_COLUMNS
    columns = widest if whole and widest is not None else LANE_COLUMNS
    return ProgramTile(lanes, columns, max(1, min(8, lanes * columns // 256)), whole)


def _splits(
    nest: RowNest, rows: Size, columns: Sequence[Size], tile: ProgramTile, multiprocessors: int
) -> int:
    """Programs for the columns of one tile of rows, so that all multiprocessors have work."""
    if tile.whole or not _can_be_split(nest):
        return 1
    programs = divided_up(rows, tile.rows)
    if not isinstance(programs, int):
        return 1
    wanted = min(MOST_SPLITS, 4 * multiprocessors // max(programs, 1))
    for size in columns:
        if isinstance(size, int):
            wanted = min(wanted, size // (2 * tile.columns))
    return 1 << (wanted.bit_length() - 1) if wanted > 1 else 1


def _can_be_split(nest: RowNest) -> bool:
    """One phase over columns, which only reduces; what it stores no other phase reads."""
    over = [phase for phase in nest.phases if any(part.columns for part in phase.parts)]
    if nest.scratch or len(over) != 1 or over[0].scans or not over[0].reductions:
        return False
    if any(not part.columns for part in over[0].parts):
        return False
    stored = {i.buffer for part in over[0].parts for i in part.body if isinstance(i, Store)}
    read = {
        i.buffer
        for phase in nest.phases
        if phase is not over[0]
        for part in phase.parts
        for i in part.body
        if isinstance(i, Load)
    }
    return not stored & read
