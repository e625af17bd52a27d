"""What torch.cuda's caching allocator would reserve for a recorded trace, after the rule that its documentation describes.

Sizes are rounded to 512 bytes. Up to 1 MiB they come from segments of 2 MiB; below 10 MiB from segments of 20 MiB; larger
ones from a segment of their own, rounded to 2 MiB. The smallest free block that is large enough is taken, and split where at
least 512 bytes (small) or more than 1 MiB (large) are left; neighbours that are free become one. Nothing is given back.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SMALLEST, SMALL_LIMIT, OWN_SEGMENT = 512, 2**20, 10 * 2**20
SMALL_SEGMENT, SHARED_SEGMENT, STEP = 2 * 2**20, 20 * 2**20, 2 * 2**20


def rounded(size: int, step: int = SMALLEST) -> int:
    return max(step, -(-size // step) * step)


def segment_size(size: int) -> int:
    if size <= SMALL_LIMIT:
        return SMALL_SEGMENT
    return SHARED_SEGMENT if size < OWN_SEGMENT else rounded(size, STEP)


@dataclass(eq=False)
class Piece:
    """A part of a segment."""

    start: int
    size: int
    pool: tuple[int, bool]  # stream, and whether small
    free: bool = True
    before: Piece | None = None
    after: Piece | None = None


class CachingRule:
    """Replays allocations and frees; `reserved` and `peak` are bytes."""

    def __init__(self) -> None:
        self.reserved = self.peak = self.allocated = self.peak_allocated = 0
        self._free: dict[tuple[int, bool], list[tuple[int, int, int, Piece]]] = {}
        self._end = 0

    def allocate(self, size: int, stream: int = 0) -> Piece:
        size = rounded(size)
        pool = (stream, size <= SMALL_LIMIT)
        free = self._free.setdefault(pool, [])
        at = bisect.bisect_left(free, (size, -1))
        piece = free.pop(at)[3] if at < len(free) else self._grow(size, pool)
        left = piece.size - size
        if left >= SMALLEST if pool[1] else left > SMALL_LIMIT:
            rest = Piece(piece.start + size, left, pool, True, piece, piece.after)
            if piece.after:
                piece.after.before = rest
            piece.after, piece.size = rest, size
            self._insert(rest)
        piece.free = False
        self.allocated += piece.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return piece

    def free(self, piece: Piece) -> None:
        self.allocated -= piece.size
        piece.free = True
        for other in (piece.before, piece.after):
            if other is None or not other.free:
                continue
            self._remove(other)
            piece.start, piece.size = min(piece.start, other.start), piece.size + other.size
            if other is piece.before:
                piece.before = other.before
                if piece.before:
                    piece.before.after = piece
            else:
                piece.after = other.after
                if piece.after:
                    piece.after.before = piece
        self._insert(piece)

    def _grow(self, size: int, pool: tuple[int, bool]) -> Piece:
        piece = Piece(self._end, segment_size(size), pool)
        self._end += piece.size
        self.reserved += piece.size
        self.peak = max(self.peak, self.reserved)
        return piece

    def _insert(self, piece: Piece) -> None:
        bisect.insort(self._free[piece.pool], (piece.size, piece.start, id(piece), piece))

    def _remove(self, piece: Piece) -> None:
        free = self._free[piece.pool]
        del free[bisect.bisect_left(free, (piece.size, piece.start))]


def replay(events: Iterable[Mapping[str, Any]]) -> CachingRule:
    """The rule after the events of one device (`device_traces` of a snapshot)."""
    rule = CachingRule()
    held: dict[int, Piece] = {}
    for event in events:
        if event["action"] == "alloc":
            held[event["addr"]] = rule.allocate(event["size"], event["stream"])
        elif event["action"] == "free_completed" and event["addr"] in held:
            rule.free(held.pop(event["addr"]))
    return rule
