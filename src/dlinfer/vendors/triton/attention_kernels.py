"""The kernels of attention: prefill of ragged sequences, over fresh keys or over pages; decode of a few new tokens, the keys of a
sequence shared out among programs, then summed up. `F` is an `AttentionConfig`."""

from __future__ import annotations

import triton.language as tl  # type: ignore[import-not-found]

from dlinfer.vendors.triton.arithmetic import find_group
from dlinfer.vendors.triton.attention_tiles import (
    attend,
    elements,
    nothing_yet,
    parameters,
    queries,
    side_of,
    store_part,
)
from dlinfer.vendors.triton.launching import Launcher, jit

# ---- prefill ----


@jit
def sequence_of_tile(
    cu_seqlens: tl.tensor,
    lengths: tl.tensor,
    tile: tl.tensor,
    tokens: tl.tensor,
    sequences: tl.tensor,
    room: tl.tensor,
    F: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """(sequence, its first token, its tokens, the first row of the tile, its keys, its first key, is something wrong)."""
    sequence = find_group(cu_seqlens + 1, tile, sequences, F.group, F.rows)
    begin = tl.load(cu_seqlens + sequence).to(tl.int32)
    end = tl.load(cu_seqlens + sequence + 1).to(tl.int32)
    first_row = (tile - (begin * F.group // F.rows + sequence)) * F.rows
    # Cumulative lengths that do not rise, or pass the last token, must not lead outside.
    begin = tl.minimum(tl.maximum(begin, 0), tokens)
    new = tl.minimum(end, tokens) - begin
    claimed = tl.load(lengths + sequence).to(tl.int32)
    first = 0
    if F.block_size == 0:
        for start in range(0, sequence, 64):
            i = start + tl.arange(0, 64)
            first += tl.sum(tl.load(lengths + i, mask=i < sequence, other=0).to(tl.int32))
        first = tl.minimum(tl.maximum(first, 0), room)
    length = tl.minimum(tl.maximum(claimed, 0), room - first)
    wrong = claimed != length
    if F.causal:
        wrong = wrong | ((length < new) & (length > 0))
    return sequence, begin, new, first_row, length, first, tl.where(wrong, 1, 0)


@jit
def seen_keys(
    first_row: tl.tensor,
    new: tl.tensor,
    length: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    F: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Which keys a tile looks at: [low, high), and up to where (from low) all of its rows see all of them."""
    low = 0
    high = length
    free = length
    earliest = first_row // F.group + length - new
    last = tl.minimum(new - 1, (first_row + F.rows - 1) // F.group) + length - new
    if F.causal:
        high = tl.minimum(high, last + 1)
        free = tl.minimum(free, earliest + 1)
    if F.right:
        high = tl.minimum(high, last + right + 1)
        free = tl.minimum(free, earliest + right + 1)
    if F.left:
        low = tl.maximum(0, earliest - left) // F.keys * F.keys
    free = tl.maximum(free, 0) // F.keys * F.keys
    if F.left or F.masked:
        free = low
    return low, free, high


@Launcher
def prefill_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    table: tl.tensor,
    cu_seqlens: tl.tensor,
    lengths: tl.tensor,
    out: tl.tensor,
    mask: tl.tensor,
    slopes: tl.tensor,
    key_scales: tl.tensor,
    key_zeros: tl.tensor,
    value_scales: tl.tensor,
    value_zeros: tl.tensor,
    tokens: tl.tensor,
    sequences: tl.tensor,
    room: tl.tensor,
    blocks: tl.tensor,
    columns: tl.tensor,
    mask_columns: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    window_left: tl.tensor,
    window_right: tl.tensor,
    query_token: tl.tensor,
    query_head: tl.tensor,
    query_element: tl.tensor,
    key_block: tl.tensor,
    key_token: tl.tensor,
    key_head: tl.tensor,
    key_element: tl.tensor,
    value_block: tl.tensor,
    value_token: tl.tensor,
    value_head: tl.tensor,
    value_element: tl.tensor,
    out_token: tl.tensor,
    out_head: tl.tensor,
    out_element: tl.tensor,
    mask_token: tl.tensor,
    scale_head: tl.tensor,
    scale_element: tl.tensor,
    kv_heads: tl.tensor,
    F: tl.constexpr,
) -> None:
    # Late tiles of a causal sequence have the most keys: they go first.
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // kv_heads
    head = tl.program_id(0) % kv_heads
    sequence, begin, new, first_row, length, first, wrong = sequence_of_tile(
        cu_seqlens, lengths, tile, tokens, sequences, room, F
    )
    # Nor may lengths that fall: a tile in front of its sequence has nothing to do.
    if (first_row >= 0) & (first_row < new * F.group):
        row = first_row + tl.arange(0, F.rows)
        token = row // F.group
        valid = token < new
        index = (begin + token).to(tl.int64)
        h = head * F.group + row % F.group
        if F.bits > 0:
            key_scales += head * scale_head
            value_scales += head * scale_head
            if not F.each:
                scale = scale * tl.load(key_scales).to(tl.float32)
        at = index * query_token + h * query_head
        q0 = queries(query, at, valid, query_element, key_scales, F, False)
        q1 = q0
        if F.k1 > 0:
            q1 = queries(query, at, valid, query_element, key_scales, F, True)
        slope = h
        if F.sloped:
            slope = tl.load(slopes + h).to(tl.float32)
        row_info = (length - new + token, slope, tl.where(valid, index * mask_token, -1))
        keys = side_of(
            key, head, key_block, key_token, key_head, key_element, key_zeros, scale_head, scale_element, F, False,
        )  # fmt: skip
        values = side_of(
            value, head, value_block, value_token, value_head, value_element, value_zeros, scale_head, scale_element,
            F, True,
        )  # fmt: skip
        if F.block_size > 0:
            table += sequence.to(tl.int64) * columns
        pages = (table, blocks, first)
        masking = (scale, soft_cap, window_left, window_right, mask, mask_columns, length)
        low, free, high = seen_keys(first_row, new, length, window_left, window_right, F)
        state = nothing_yet(F)
        if not (F.left or F.masked):
            state = attend(state, q0, q1, low, free, row_info, keys, values, pages, masking, F, True)
        state = attend(state, q0, q1, free, high, row_info, keys, values, pages, masking, F, False)
        _, total, acc0, acc1, bad = state
        wrong = wrong | tl.max(bad, 0)
        to = out + index * out_token + h * out_head
        store_part(to, out_element, valid, acc0, total, wrong, value_scales, scale_element, F, False)
        if F.v1 > 0:
            store_part(to, out_element, valid, acc1, total, wrong, value_scales, scale_element, F, True)


# ---- decode ----


@jit
def store_share(
    partial: tl.tensor,
    rows: tl.tensor,
    valid: tl.tensor,
    acc: tl.tensor,
    scales: tl.tensor,
    scale_element: tl.tensor,
    F: tl.constexpr,
    SECOND: tl.constexpr,
) -> None:
    """Weighted values of one split, not divided yet."""
    d, exists = elements(F, True, SECOND)
    if F.bits > 0:
        acc = acc * parameters(scales, scale_element, F, True, SECOND)[None, :]
    tl.store(partial + rows[:, None] * F.size_v + d[None, :], acc, mask=valid[:, None] & exists[None, :])


@jit
def share_of_split(
    length: tl.tensor,
    new: tl.tensor,
    left: tl.tensor,
    first_token: tl.tensor,
    split: tl.tensor,
    splits: tl.tensor,
    F: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The keys [low, high) of one split: even shares, in whole steps, of what the tile sees."""
    low = 0
    if F.left:
        low = tl.maximum(0, length - new + first_token - left) // F.keys * F.keys
    steps = tl.cdiv(tl.maximum(length - low, 0), F.keys)
    each = tl.cdiv(steps, splits) * F.keys
    low += split * each
    return low, tl.minimum(length, low + each)


@Launcher
def decode_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    table: tl.tensor,
    lengths: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    slopes: tl.tensor,
    key_scales: tl.tensor,
    key_zeros: tl.tensor,
    value_scales: tl.tensor,
    value_zeros: tl.tensor,
    new: tl.tensor,
    room: tl.tensor,
    blocks: tl.tensor,
    columns: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    window_left: tl.tensor,
    query_token: tl.tensor,
    query_head: tl.tensor,
    query_element: tl.tensor,
    key_block: tl.tensor,
    key_token: tl.tensor,
    key_head: tl.tensor,
    key_element: tl.tensor,
    value_block: tl.tensor,
    value_token: tl.tensor,
    value_head: tl.tensor,
    value_element: tl.tensor,
    out_token: tl.tensor,
    out_head: tl.tensor,
    out_element: tl.tensor,
    scale_head: tl.tensor,
    scale_element: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    F: tl.constexpr,
) -> None:
    # Heads of one token lie side by side: programs that run together read memory in one piece.
    head = tl.program_id(0) % kv_heads
    tile = tl.program_id(0) // kv_heads
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    sequence = tl.program_id(2)
    claimed = tl.load(lengths + sequence).to(tl.int32)
    length = tl.minimum(tl.maximum(claimed, 0), room)

    row = tile * F.rows + tl.arange(0, F.rows)
    token = row // F.group
    valid = token < new
    index = (sequence * new + token).to(tl.int64)
    h = head * F.group + row % F.group
    low, high = share_of_split(length, new, window_left, tile * F.rows // F.group, split, splits, F)
    if F.bits > 0:
        key_scales += head * scale_head
        value_scales += head * scale_head
        if not F.each:
            scale = scale * tl.load(key_scales).to(tl.float32)
    at = index * query_token + h * query_head
    q0 = queries(query, at, valid, query_element, key_scales, F, False)
    q1 = q0
    if F.k1 > 0:
        q1 = queries(query, at, valid, query_element, key_scales, F, True)
    slope = h
    if F.sloped:
        slope = tl.load(slopes + h).to(tl.float32)
    row_info = (length - new + token, slope, row)
    keys = side_of(
        key, head, key_block, key_token, key_head, key_element, key_zeros, scale_head, scale_element, F, False
    )
    values = side_of(
        value, head, value_block, value_token, value_head, value_element, value_zeros, scale_head, scale_element,
        F, True,
    )  # fmt: skip
    pages = (table + sequence.to(tl.int64) * columns, blocks, 0)
    masking = (scale, soft_cap, window_left, 0, query, 0, length)
    state = attend(nothing_yet(F), q0, q1, low, high, row_info, keys, values, pages, masking, F, False)
    m, total, acc0, acc1, bad = state
    wrong = tl.max(bad, 0) | tl.where(claimed == length, 0, 1)
    if partial is None:
        to = out + index * out_token + h * out_head
        store_part(to, out_element, valid, acc0, total, wrong, value_scales, scale_element, F, False)
        if F.v1 > 0:
            store_part(to, out_element, valid, acc1, total, wrong, value_scales, scale_element, F, True)
    else:
        everything = tl.num_programs(2) * new * heads
        rows = split * everything + index * heads + h
        store_share(partial, rows, valid, acc0, value_scales, scale_element, F, False)
        if F.v1 > 0:
            store_share(partial, rows, valid, acc1, value_scales, scale_element, F, True)
        # Behind the values: the largest scores, then the sums of weights.
        behind = partial + splits.to(tl.int64) * everything * F.size_v
        # What is wrong must count, also in a split that saw nothing.
        m = tl.where(wrong != 0, 0.0, m)
        total = tl.where(wrong != 0, float("nan"), total)
        tl.store(behind + rows, m, mask=valid)
        tl.store(behind + splits * everything + rows, total, mask=valid)


@Launcher
def sum_kernel(
    partial: tl.tensor,
    out: tl.tensor,
    splits: tl.tensor,
    heads: tl.tensor,
    out_token: tl.tensor,
    out_head: tl.tensor,
    out_element: tl.tensor,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """One head of one token: its splits, each with its own largest score, become one result."""
    token = tl.program_id(1).to(tl.int64)
    head = tl.program_id(0)
    everything = tl.num_programs(1) * heads
    behind = partial + splits.to(tl.int64) * everything * SIZE
    d = tl.arange(0, WIDTH)
    m = float("-inf")
    total = 0.0
    acc = tl.zeros([WIDTH], tl.float32)
    for start in range(0, splits, SPLITS):
        split = start + tl.arange(0, SPLITS)
        rows = split * everything + token * heads + head
        level = tl.load(behind + rows, mask=split < splits, other=float("-inf"))
        used = level > float("-inf")
        weights = tl.load(behind + splits * everything + rows, mask=used, other=0)
        values = tl.load(
            partial + rows[:, None] * SIZE + d[None, :], mask=used[:, None] & (d < SIZE)[None, :], other=0
        )
        largest = tl.maximum(m, tl.max(level, 0))
        common = tl.where(largest == float("-inf"), 0.0, largest)
        shrink = tl.exp2(m - common)
        factor = tl.exp2(level - common)
        total = total * shrink + tl.sum(weights * factor, 0)
        acc = acc * shrink + tl.sum(values * factor[:, None], 0)
        m = largest
    # A sum that is not a number came from a bad table, and stays.
    result = acc / tl.where(total == 0, 1.0, total)
    to = out + token * out_token + head * out_head + d * out_element
    tl.store(to, result.to(out.dtype.element_ty), mask=d < SIZE)
