"""Checks of paged caches: shapes, quantisation, lengths and block tables."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.interface.checks import (
    FLOATS,
    INTEGERS,
    has_dtype,
    has_rank,
    is_vector,
    same_device,
    wrong,
)

BITS = (0, 4, 8)
BYTES = (torch.int8, torch.uint8)


def check_cache(name: str, argument: str, cache: Tensor, bits: int, like: Tensor, dtype_of: str) -> int:
    """Checks one cache [blocks, block_size, kv_heads, size] and gives the size of a head it holds."""
    has_rank(name, argument, cache, 4)
    same_device(name, dtype_of, like, argument, cache)
    if bits not in BITS:
        raise wrong(
            name, "quant_bits", f"is {bits}, expected 0 (cache like {dtype_of}), 8 or 4 bits an element"
        )
    if bits == 0:
        if cache.dtype != like.dtype:
            text = f"dtype is {cache.dtype}, expected {like.dtype} like {dtype_of} (or quant_bits of 8 or 4)"
            raise wrong(name, argument, text)
        return cache.shape[3]
    has_dtype(
        name,
        argument,
        cache,
        BYTES if bits == 8 else (torch.uint8,),
        f" for a cache of {bits} bits an element",
    )
    return cache.shape[3] * (8 // bits)


def check_scale(name: str, argument: str, scale: Tensor, heads: int, size: int, like: Tensor) -> None:
    """A scale or zero for all, for each head, or for each element of each head."""
    has_dtype(name, argument, scale, FLOATS)
    same_device(name, "the cache", like, argument, scale)
    if scale.numel() not in (1, heads, heads * size):
        raise wrong(
            name,
            argument,
            f"has {scale.numel()} elements, expected 1, {heads} (heads) or {heads * size} (heads * head_size)",
        )


def check_block_table(name: str, block_table: Tensor, kv_lengths: Tensor, like: Tensor) -> int:
    """Checks the shapes of the table and of the lengths; gives the number of sequences."""
    has_rank(name, "block_table", block_table, 2)
    has_dtype(name, "block_table", block_table, INTEGERS)
    if block_table.device != like.device and not block_table.is_cpu:
        raise wrong(
            name, "block_table", f"is on {block_table.device}, expected {like.device} (like query) or cpu"
        )
    is_vector(name, "kv_lengths", kv_lengths, block_table.shape[0], "one for each row of block_table", like)
    return block_table.shape[0]


def length_list(name: str, argument: str, lengths: Tensor) -> list[int]:
    """Lengths as numbers; none may be negative."""
    found: list[int] = lengths.tolist()
    if found and min(found) < 0:
        place = next(i for i, length in enumerate(found) if length < 0)
        raise wrong(name, argument, f"element {place} is {found[place]}, expected at least 0")
    return found


def query_lengths(name: str, query_ends: Tensor, tokens: int) -> list[int]:
    """The lengths between cumulative ends, which must rise to the number of tokens."""
    ends: list[int] = query_ends.tolist()
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    for place, length in enumerate(lengths):
        if length < 0:
            text = f"falls from {ends[place] - length} to {ends[place]} at element {place}; cumulative ends never fall"
            raise wrong(name, "query_ends", text)
    if (ends[-1] if ends else 0) != tokens:
        last = ends[-1] if ends else 0
        raise wrong(name, "query_ends", f"ends at {last}, but query has {tokens} tokens")
    return lengths


def check_table_values(
    name: str, block_table: Tensor, kv_lengths: list[int], blocks: int, block_size: int
) -> None:
    """Every block that a length reaches must be in the table and in the cache."""
    columns = block_table.shape[1]
    longest = max(kv_lengths, default=0)
    if longest > columns * block_size:
        place = kv_lengths.index(longest)
        raise wrong(
            name,
            "kv_lengths",
            f"element {place} is {longest}, but {columns} blocks of {block_size} in block_table hold {columns * block_size}",
        )
    if not block_table.numel():
        return
    low, high = (int(value) for value in block_table.aminmax())
    if low >= 0 and high < blocks:
        return
    # Rows are padded with anything: only what a length reaches counts.
    for row, length in enumerate(kv_lengths):
        used = -(-length // block_size)
        for column, block in enumerate(block_table[row, :used].tolist()):
            if not 0 <= block < blocks:
                text = (
                    f"[{row}, {column}] is {block}, expected 0 to {blocks - 1}: the cache has {blocks} blocks"
                )
                raise wrong(name, "block_table", text)


def check_slots(name: str, kv_indices: Tensor, slots: int) -> None:
    """Slots of a cache; -1 leaves a token out."""
    if not kv_indices.numel():
        return
    low, high = (int(value) for value in kv_indices.aminmax())
    if low < -1 or high >= slots:
        raise wrong(
            name,
            "kv_indices",
            f"holds {high if high >= slots else low}, expected 0 to {slots - 1} (slots of the cache) or -1 (left out)",
        )
