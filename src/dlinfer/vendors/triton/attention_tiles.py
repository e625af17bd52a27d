"""Attention of a tile of rows over a range of keys: what prefill and decode share.

Rows of a tile are (token, head) pairs of one sequence whose heads share one head of keys, so keys are loaded once for all of
them. `F` is an `AttentionConfig`. Tuples hold what belongs together:

- row_info: (position of each row in its sequence, its slope, where its mask begins, or -1)
- side: (keys or values of one head, strides of a block, a token and an element, zeros of both parts of a head)
- pages: (the sequence's row of the table, how many blocks there are, the first token of the sequence if there is no table)
- masking: (scale, soft cap, window to the left, to the right, mask, columns of the mask, keys of the sequence)

Where `F` says that there is no such thing, anything may stand there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache, cached_property

import triton.language as tl  # type: ignore[import-not-found]

from dlinfer.vendors.triton.arithmetic import tanh
from dlinfer.vendors.triton.launching import jit

LOG2E = tl.constexpr(1.4426950408889634)


# ---- what a kernel is compiled for ----


@dataclass(frozen=True, eq=False)
class AttentionConfig:
    """Constants inside a kernel, handed over as one. Equal ones are one object (`attention_config`): they hash fast."""

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
def attention_config(*values: int | bool | str) -> AttentionConfig:
    """The configuration with these values, in the order of its fields."""
    return AttentionConfig(*values)  # type: ignore[arg-type]


@cache
def parts(size: int, bits: int) -> tuple[int, int]:
    """How a head is held: the widths of its two parts, powers of two of at least 16 as matrix units want them."""
    if bits == 4:
        half = max(16, 1 << (size // 2 - 1).bit_length())
        return half, half
    first = max(16, 1 << (size.bit_length() - 1))
    rest = size - first
    return first, max(16, 1 << (rest - 1).bit_length()) if rest > 0 else 0


# ---- keys, values and scores ----


@jit
def elements(F: tl.constexpr, VALUES: tl.constexpr, SECOND: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """(elements of a part of a head, which of them exist)."""
    size: tl.constexpr = F.size_v if VALUES else F.size
    first: tl.constexpr = F.v0 if VALUES else F.k0
    second: tl.constexpr = F.v1 if VALUES else F.k1
    if SECOND:
        d = tl.arange(0, second) + (size // 2 if F.bits == 4 else first)
        exists = d < size
    else:
        d = tl.arange(0, first)
        exists = d < (size // 2 if F.bits == 4 else size)
    return d, exists


@jit
def loaded(
    side: tl.tensor,
    rows: tl.tensor,
    inside: tl.tensor,
    F: tl.constexpr,
    VALUES: tl.constexpr,
    FREE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Both parts of rows of keys or values, as they are stored. FREE: every row may be read."""
    base, _, _, element, _, _ = side
    size: tl.constexpr = F.size_v if VALUES else F.size
    width: tl.constexpr = F.v0 if VALUES else F.k0
    more: tl.constexpr = F.v1 if VALUES else F.k1
    whole: tl.constexpr = width <= (size // 2 if F.bits == 4 else size)
    d, exists = elements(F, VALUES, False)
    at = base + rows[:, None] + d[None, :] * element
    if FREE and whole:
        first = tl.load(at)
    elif whole:
        first = tl.load(at, mask=inside[:, None], other=0)
    else:
        first = tl.load(at, mask=inside[:, None] & exists[None, :], other=0)
    second = first
    if F.bits == 4:
        second = first >> 4
        first = first & 15
    elif more > 0:
        d, exists = elements(F, VALUES, True)
        at = base + rows[:, None] + d[None, :] * element
        second = tl.load(at, mask=inside[:, None] & exists[None, :], other=0)
    return first, second


@jit
def operand(x: tl.tensor, zero: tl.tensor, like: tl.tensor, F: tl.constexpr) -> tl.tensor:
    """Stored elements as numbers in the dtype of `like`, still without their scale: exact for whole zeros."""
    return (x.to(tl.float32) - zero[None, :]).to(like.dtype) if F.zeros else x.to(like.dtype)


@jit
def row_offsets(
    start: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    bad: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    pages: tl.tensor,
    F: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Where the rows of keys and of values lie; `bad` grows where a block does not exist."""
    table, blocks, first = pages
    _, key_block, key_token, _, _, _ = keys
    _, value_block, value_token, _, _, _ = values
    if F.block_size == 0:
        at = (first + n).to(tl.int64)
        key_rows = at * key_token
        value_rows = at * value_token
    else:
        if F.block_size % F.keys == 0:
            # The whole step lies in one block.
            block = tl.load(table + start // F.block_size).to(tl.int64)
        else:
            block = tl.load(table + n // F.block_size, mask=inside, other=0).to(tl.int64)
        exists = (block >= 0) & (block < blocks)
        bad = bad | tl.where(exists, 0, 1)
        block = tl.where(exists, block, 0)
        key_rows = block * key_block + (n % F.block_size) * key_token
        value_rows = block * value_block + (n % F.block_size) * value_token
    return key_rows, value_rows, bad


@jit
def scored(
    s: tl.tensor, n: tl.tensor, row_info: tl.tensor, masking: tl.tensor, F: tl.constexpr, FREE: tl.constexpr
) -> tl.tensor:
    """Products of queries and keys as scores times log2(e); minus infinity where a row does not see a key."""
    position, slope, mask_row = row_info
    scale, soft_cap, window_left, window_right, mask, mask_columns, length = masking
    plain: tl.constexpr = not (F.capped or F.sloped or (F.masked and not F.hiding))
    # Where nothing happens to scores in between, one product does.
    s = s * (scale * LOG2E if plain else scale)
    if F.capped:
        s = tanh(s / soft_cap) * soft_cap
    distance = n[None, :] - position[:, None]
    if F.sloped:
        s = s - slope[:, None] * tl.abs(distance).to(tl.float32)
    if not FREE:
        hidden = (n >= length)[None, :]
        if F.causal:
            hidden = hidden | (distance > 0)
        if F.left:
            hidden = hidden | (distance < -window_left)
        if F.right:
            hidden = hidden | (distance > window_right)
        if F.masked:
            there = (n < mask_columns)[None, :] & (mask_row >= 0)[:, None]
            drawn = tl.load(mask + mask_row[:, None] + n[None, :], mask=there, other=0)
            if F.hiding:
                hidden = hidden | (drawn != 0)
            else:
                s = s + drawn.to(tl.float32)
        s = tl.where(hidden, float("-inf"), s)
    return s if plain else s * LOG2E


@jit
def attend(
    state: tl.tensor,
    q0: tl.tensor,
    q1: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    row_info: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    pages: tl.tensor,
    masking: tl.tensor,
    F: tl.constexpr,
    FREE: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Goes on from a state over the keys [low, high); low is a multiple of F.keys. FREE: all rows see all of them.

    A state is (m, total, acc0, acc1, bad): the largest score of each row, times log2(e); the sum of its weights; its weighted
    values, in two parts; not 0 where the table held a block that does not exist.
    """
    m, total, acc0, acc1, bad = state
    _, _, _, _, kz0, kz1 = keys
    _, _, _, _, vz0, vz1 = values
    _, _, _, _, _, _, length = masking
    for start in tl.range(low, high, F.keys):
        n = start + tl.arange(0, F.keys)
        inside = n < length
        key_rows, value_rows, bad = row_offsets(start, n, inside, bad, keys, values, pages, F)
        k0, k1 = loaded(keys, key_rows, inside, F, False, FREE)
        s = tl.dot(q0, tl.trans(operand(k0, kz0, q0, F)), input_precision=F.precision)
        if F.k1 > 0:
            s = tl.dot(q1, tl.trans(operand(k1, kz1, q0, F)), s, input_precision=F.precision)
        s = scored(s, n, row_info, masking, F, FREE)
        largest = tl.maximum(m, tl.max(s, 1))
        # A row that has seen nothing yet: any finite number does.
        level = tl.where(largest == float("-inf"), 0.0, largest)
        weight = tl.exp2(s - level[:, None])
        shrink = tl.exp2(m - level)
        total = total * shrink + tl.sum(weight, 1)
        weight = weight.to(q0.dtype)
        v0, v1 = loaded(values, value_rows, inside, F, True, FREE)
        acc0 = tl.dot(weight, operand(v0, vz0, q0, F), acc0 * shrink[:, None], input_precision=F.precision)
        if F.v1 > 0:
            acc1 = tl.dot(
                weight, operand(v1, vz1, q0, F), acc1 * shrink[:, None], input_precision=F.precision
            )
        m = largest
    return m, total, acc0, acc1, bad


# ---- before and after: queries, heads of caches, results ----


@jit
def queries(
    query: tl.tensor,
    rows: tl.tensor,
    valid: tl.tensor,
    element: tl.tensor,
    scales: tl.tensor,
    F: tl.constexpr,
    SECOND: tl.constexpr,
) -> tl.tensor:
    """A part of rows of queries; scales of single elements of the keys are multiplied in."""
    d, exists = elements(F, False, SECOND)
    q = tl.load(query + rows[:, None] + d[None, :] * element, mask=valid[:, None] & exists[None, :], other=0)
    if F.each:
        factor = tl.load(scales + d, mask=exists, other=0).to(tl.float32)
        q = (q.to(tl.float32) * factor[None, :]).to(q.dtype)
    return q


@jit
def parameters(
    at: tl.tensor, element: tl.tensor, F: tl.constexpr, VALUES: tl.constexpr, SECOND: tl.constexpr
) -> tl.tensor:
    """Scales or zeros of a part of a head."""
    d, exists = elements(F, VALUES, SECOND)
    return tl.load(at + d * element, mask=exists, other=0).to(tl.float32)


@jit
def side_of(
    base: tl.tensor,
    head: tl.tensor,
    block: tl.tensor,
    token: tl.tensor,
    head_stride: tl.tensor,
    element: tl.tensor,
    zeros: tl.tensor,
    scale_head: tl.tensor,
    scale_element: tl.tensor,
    F: tl.constexpr,
    VALUES: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """One head of a cache, as `tiles` has it."""
    zero0 = head
    zero1 = head
    if F.zeros:
        zero0 = parameters(zeros + head * scale_head, scale_element, F, VALUES, False)
        if (F.v1 if VALUES else F.k1) > 0:
            zero1 = parameters(zeros + head * scale_head, scale_element, F, VALUES, True)
    return base + head.to(tl.int64) * head_stride, block, token, element, zero0, zero1


@jit
def nothing_yet(F: tl.constexpr) -> tuple[tl.tensor, ...]:
    """The state before the first key."""
    m = tl.full([F.rows], float("-inf"), tl.float32)
    total = tl.full([F.rows], 0.0, tl.float32)
    acc0 = tl.full([F.rows, F.v0], 0.0, tl.float32)
    acc1 = tl.full([F.rows, F.v1 if F.v1 > 0 else 1], 0.0, tl.float32)
    return m, total, acc0, acc1, tl.full([F.keys], 0, tl.int32)


@jit
def store_part(
    to: tl.tensor,
    element: tl.tensor,
    valid: tl.tensor,
    acc: tl.tensor,
    total: tl.tensor,
    bad: tl.tensor,
    scales: tl.tensor,
    scale_element: tl.tensor,
    F: tl.constexpr,
    SECOND: tl.constexpr,
) -> None:
    """Weighted values over the sum of weights; a row that saw nothing is 0, one with a bad table NaN."""
    d, exists = elements(F, True, SECOND)
    result = acc / tl.where(total == 0, 1.0, total)[:, None]
    if F.bits > 0:
        result = result * parameters(scales, scale_element, F, True, SECOND)[None, :]
    result = tl.where(bad != 0, float("nan"), result).to(to.dtype.element_ty)
    tl.store(to[:, None] + d[None, :] * element, result, mask=valid[:, None] & exists[None, :])
