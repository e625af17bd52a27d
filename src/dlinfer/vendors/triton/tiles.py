"""Attention of a tile of rows over a range of keys: what prefill and decode share.

Rows of a tile are (token, head) pairs of one sequence whose heads share one head of keys, so keys are loaded once for all of
them. `F` is a `Form`. Tuples hold what belongs together:

- seat: (position of each row in its sequence, its slope, where its mask begins, or -1)
- side: (keys or values of one head, strides of a block, a token and an element, zeros of both parts of a head)
- pages: (the sequence's row of the table, how many blocks there are, the first token of the sequence if there is no table)
- sight: (scale, soft cap, window to the left, to the right, mask, columns of the mask, keys of the sequence)

Where `F` says that there is no such thing, anything may stand in its place.
"""

from __future__ import annotations

import triton.language as tl  # type: ignore[import-not-found]

from dlinfer.vendors.triton.arithmetic import tanh
from dlinfer.vendors.triton.language import jit

LOG2E = tl.constexpr(1.4426950408889634)


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
def places(
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
    _, key_block, key_place, _, _, _ = keys
    _, value_block, value_place, _, _, _ = values
    if F.block_size == 0:
        at = (first + n).to(tl.int64)
        key_rows = at * key_place
        value_rows = at * value_place
    else:
        if F.block_size % F.keys == 0:
            # The whole step lies in one block.
            block = tl.load(table + start // F.block_size).to(tl.int64)
        else:
            block = tl.load(table + n // F.block_size, mask=inside, other=0).to(tl.int64)
        exists = (block >= 0) & (block < blocks)
        bad = bad | tl.where(exists, 0, 1)
        block = tl.where(exists, block, 0)
        key_rows = block * key_block + (n % F.block_size) * key_place
        value_rows = block * value_block + (n % F.block_size) * value_place
    return key_rows, value_rows, bad


@jit
def scored(
    s: tl.tensor, n: tl.tensor, seat: tl.tensor, sight: tl.tensor, F: tl.constexpr, FREE: tl.constexpr
) -> tl.tensor:
    """Products of queries and keys as scores times log2(e); minus infinity where a row does not see a key."""
    position, slope, mask_row = seat
    scale, soft_cap, window_left, window_right, mask, mask_columns, length = sight
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
    seat: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    pages: tl.tensor,
    sight: tl.tensor,
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
    _, _, _, _, _, _, length = sight
    for start in tl.range(low, high, F.keys):
        n = start + tl.arange(0, F.keys)
        inside = n < length
        key_rows, value_rows, bad = places(start, n, inside, bad, keys, values, pages, F)
        k0, k1 = loaded(keys, key_rows, inside, F, False, FREE)
        s = tl.dot(q0, tl.trans(operand(k0, kz0, q0, F)), input_precision=F.precision)
        if F.k1 > 0:
            s = tl.dot(q1, tl.trans(operand(k1, kz1, q0, F)), s, input_precision=F.precision)
        s = scored(s, n, seat, sight, F, FREE)
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
