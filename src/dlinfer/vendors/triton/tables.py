"""Shapes of tiles: how large a piece of work one program takes, by kernel and by what it works on.

Chosen by measuring (`benchmarks/dlinfer_gpu_tiles.py`), not while a program runs: nothing is tried out on a user's first call.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from dlinfer.vendors.triton.launching import cdiv, power_above


class Tile(NamedTuple):
    """Rows and columns of a tile (queries and keys, for attention), the depth of one step of a product, and how it runs."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


# Programs of a decode for each multiprocessor: two keep its memory busy, more get into each other's way.
PROGRAMS = 2
# Keys that a split of a decode has at least, or summing up costs more than it brings.
LEAST_KEYS = 128
# From so many keys on, an even share for all counts for more than the sum, if tokens are narrow (bytes of a key and a value).
LONG, NARROW = 4096, 256


@cache
def prefill(width: int, itemsize: int) -> Tile:
    """For heads of keys and of values that have `width` elements together."""
    if itemsize == 4:
        return Tile(32, 32, 0, 4, 2) if width <= 256 else Tile(16, 16, 0, 4, 1)
    if width <= 128:
        return Tile(128, 64, 0, 4, 5)
    if width <= 256:
        return Tile(64, 64, 0, 4, 3)
    return Tile(64, 32, 0, 8, 2) if width <= 640 else Tile(32, 32, 0, 8, 1)


@cache
def decode(width: int, itemsize: int, rows: int) -> Tile:
    """The same for decode; `rows` are (new token, head) pairs that share keys."""
    rows = min(power_above(rows, 16), 64 if width <= 256 else 16)
    if itemsize == 4:
        return Tile(min(rows, 32), 32 if width <= 256 else 16, 0, 4, 2)
    return Tile(rows, 64, 0, 4, 5) if width <= 256 else Tile(rows, 32, 0, 4, 2)


def splits(programs: int, longest: int, width: int, multiprocessors: int) -> int:
    """Into how many parts the keys of a sequence are split in decode; `width` are bytes of a key and a value."""
    room = PROGRAMS * multiprocessors
    even = longest >= LONG and width <= NARROW
    wanted = cdiv(room, programs) if even else room // programs
    return max(1, min(wanted, cdiv(longest, LEAST_KEYS)))


@cache
def product(rows: int) -> Tile:
    """For products of 8-bit activations and weights."""
    if rows <= 32:
        return Tile(power_above(rows, 16), 64, 256, 8, 3)
    return Tile(64, 128, 128, 4, 3) if rows <= 64 else Tile(128, 128, 128, 8, 3)


@cache
def weight(rows: int, half: bool, group: int) -> Tile:
    """For products with weights of 4 or 8 bits; a step lies in one group of rows that share scales."""
    depth = max(16, min(32, group & -group))
    rows = power_above(rows, 16)
    return Tile(min(64, rows), 128, depth, 4, 4) if half else Tile(min(32, rows), 64, depth, 4, 3)


# With more rows than this, weights become numbers in memory first, for a product of torch's own.
FEW_ROWS = 64


@cache
def experts(pairs: int, count: int, half: bool) -> Tile:
    """For mixtures of experts: rows as an expert has them on average."""
    if not half:
        return Tile(16, 32, 32, 4, 3)
    each = cdiv(pairs, max(count, 1))
    if each <= 32:
        return Tile(16 if each <= 16 else 32, 64, 128, 4, 3)
    return Tile(64, 64, 64, 4, 3) if each <= 128 else Tile(128, 128, 64, 8, 4)
