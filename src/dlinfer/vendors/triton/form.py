"""What a kernel of attention is compiled for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache, cached_property


@dataclass(frozen=True, eq=False)
class Form:
    """Facts that are constants inside a kernel, handed over as one. Equal ones are one object (`form`), so they hash fast."""

    size: int
    """Elements of a head of queries and keys."""
    k0: int
    """A head is held in two parts, tiles of powers of two: k0 elements, then k1 (0: all are in the first)."""
    k1: int
    size_v: int
    v0: int
    v1: int
    bits: int
    """Bits of an element of the caches; 0: they have the dtype of the query. With 4, the parts are halves of bytes."""
    zeros: bool
    """They are stored beside a zero; every element of a head of the keys has a scale of its own."""
    each: bool
    group: int
    """Heads of queries that share a head of keys."""
    block_size: int
    """Tokens of a block of the caches; 0: keys without pages."""
    causal: bool
    left: bool
    """There is a window to the left, to the right; a soft cap; slopes; a mask that is added, or that hides."""
    right: bool
    capped: bool
    sloped: bool
    masked: bool
    hiding: bool
    rows: int
    """Rows of a tile, (token, head) pairs; and keys of a step."""
    keys: int
    precision: str
    """Of products of float32: as IEEE has them, or what matrix units make of them."""

    def __repr__(self) -> str:
        """Short, and a name for a compiler: it becomes part of one."""
        return "_".join(str(int(v) if isinstance(v, bool) else v) for v in self.values)

    @cached_property
    def values(self) -> tuple[object, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


@cache
def form(*values: int | bool | str) -> Form:
    """The form with these values, in the order of its fields."""
    return Form(*values)  # type: ignore[arg-type]


@cache
def parts(size: int, bits: int) -> tuple[int, int]:
    """How a head is held: the widths of its two parts, powers of two of at least 16 as matrix units want them."""
    if bits == 4:
        half = max(16, 1 << (size // 2 - 1).bit_length())
        return half, half
    first = max(16, 1 << (size.bit_length() - 1))
    rest = size - first
    return first, max(16, 1 << (rest - 1).bit_length()) if rest > 0 else 0
