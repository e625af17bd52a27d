"""Conditions that the checks of all families share. Each raises DlinferArgumentError for one argument."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

import torch
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.interface.declaration import CacheQuantisation, MaskParameters

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int32, torch.int64)
MASKS = (torch.bool, *FLOATS)
QUANTISED = (torch.int8, torch.float8_e4m3fn)
BITS = (0, 4, 8)
BYTES = (torch.int8, torch.uint8)


def upcast_dtype(value: Tensor) -> torch.dtype:
    """In which dtype results are computed: float64 for float64, float32 for everything else."""
    return torch.float64 if value.dtype == torch.float64 else torch.float32


def listed(dtypes: Sequence[torch.dtype]) -> str:
    """float32, bfloat16 or int8."""
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def has_dtype(argument: str, value: Tensor, dtypes: Sequence[torch.dtype] = FLOATS, why: str = "") -> None:
    """One of some dtypes."""
    if value.dtype not in dtypes:
        raise wrong(argument, f"dtype is {listed([value.dtype])}, expected {listed(dtypes)}{why}")


def has_rank(argument: str, value: Tensor, *ranks: int) -> None:
    """One of some numbers of dimensions."""
    if value.dim() not in ranks:
        wanted = " or ".join(str(rank) for rank in ranks)
        raise wrong(argument, f"has shape {list(value.shape)}, expected {wanted} dimensions")


def has_shape(argument: str, value: Tensor, shape: Sequence[int | None], meaning: str) -> None:
    """A shape; None fits any length. `meaning` is how the documentation writes it."""
    given = value.shape
    if len(given) == len(shape) and all(b is None or a == b for a, b in zip(given, shape, strict=True)):
        return
    wanted = ", ".join("any" if length is None else str(length) for length in shape)
    raise wrong(argument, f"has shape {list(given)}, expected [{wanted}] ({meaning})")


def same_device(first: str, one: Tensor, second: str, other: Tensor) -> None:
    """Two tensors that a kernel reads together."""
    if one.device != other.device:
        raise wrong(second, f"is on {other.device}, expected {one.device} like {first}")


def together(one: Tensor, two: Tensor, three: Tensor, four: Tensor) -> bool:
    """Whether four tensors are on one device; the CPU is quicker to see than to compare."""
    if one.is_cpu:
        return two.is_cpu and three.is_cpu and four.is_cpu
    return one.device == two.device == three.device == four.device


def same_dtype(first: str, one: Tensor, second: str, other: Tensor) -> None:
    """Two tensors of one dtype."""
    if one.dtype != other.dtype:
        raise wrong(second, f"dtype is {listed([other.dtype])}, expected {listed([one.dtype])} like {first}")


def alike(first: str, one: Tensor, second: str, other: Tensor) -> None:
    """Two tensors of one dtype on one device."""
    same_dtype(first, one, second, other)
    same_device(first, one, second, other)


def is_vector(argument: str, value: Tensor, length: int, meaning: str, like: Tensor) -> None:
    """A 1-D tensor of int32 or int64 on the CPU or beside `like`, the operator's first argument."""
    has_dtype(argument, value, INTEGERS)
    if not value.is_cpu and value.device != like.device:
        raise wrong(argument, f"is on {value.device}, expected {like.device} or cpu")
    if value.dim() != 1 or value.shape[0] != length:
        raise wrong(argument, f"has shape {list(value.shape)}, expected [{length}] ({meaning})")


def positive(argument: str, value: float, *, zero: bool = False) -> None:
    """A finite number above 0 (or 0)."""
    if not (0 < value < inf or (zero and value == 0)):
        raise wrong(
            argument, f"is {value}, expected a finite number {'of at least 0' if zero else 'above 0'}"
        )


def finite(argument: str, value: float) -> None:
    """A number that is neither infinite nor none at all."""
    if not -inf < value < inf:
        raise wrong(argument, f"is {value}, expected a finite number")


def check_quantised(quant_dtype: torch.dtype) -> None:
    """A dtype that activations can be quantised to."""
    if quant_dtype not in QUANTISED:
        raise wrong("quant_dtype", f"is {quant_dtype}, expected torch.int8 or torch.float8_e4m3fn")


def fake_hidden(hidden_states: Tensor) -> Tensor:
    """A result like hidden_states."""
    return hidden_states.new_empty(hidden_states.shape)


def fake_quantised(hidden_states: Tensor, quant_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantised values and one scale for each row."""
    scales = hidden_states.new_empty(hidden_states.shape[:-1], dtype=upcast_dtype(hidden_states))
    return hidden_states.new_empty(hidden_states.shape, dtype=quant_dtype), scales


# ---- paged caches ----


def check_cache(argument: str, cache: Tensor, bits: int, like: Tensor, dtype_of: str) -> int:
    """Checks one cache [blocks, block_size, kv_heads, size] and gives the size of a head it holds."""
    has_rank(argument, cache, 4)
    same_device(dtype_of, like, argument, cache)
    if bits not in BITS:
        raise wrong("quant_bits", f"is {bits}, expected 0 (cache like {dtype_of}), 8 or 4 bits an element")
    if bits == 0:
        if cache.dtype != like.dtype:
            text = f"dtype is {cache.dtype}, expected {like.dtype} like {dtype_of} (or quant_bits of 8 or 4)"
            raise wrong(argument, text)
        return cache.shape[3]
    has_dtype(
        argument, cache, BYTES if bits == 8 else (torch.uint8,), f" for a cache of {bits} bits an element"
    )
    return cache.shape[3] * (8 // bits)


def check_scale(argument: str, scale: Tensor, heads: int, size: int, like: Tensor) -> None:
    """A scale or zero for all, for each head, or for each element of each head."""
    has_dtype(argument, scale, FLOATS)
    same_device("the cache", like, argument, scale)
    if scale.numel() not in (1, heads, heads * size):
        raise wrong(
            argument,
            f"has {scale.numel()} elements, expected 1, {heads} (heads) or {heads * size} (heads * head_size)",
        )


def check_block_table(block_table: Tensor, kv_lengths: Tensor, like: Tensor) -> int:
    """Checks the shapes of the table and of the lengths; gives the number of sequences."""
    has_rank("block_table", block_table, 2)
    has_dtype("block_table", block_table, INTEGERS)
    if block_table.device != like.device and not block_table.is_cpu:
        raise wrong("block_table", f"is on {block_table.device}, expected {like.device} (like query) or cpu")
    is_vector("kv_lengths", kv_lengths, block_table.shape[0], "one for each row of block_table", like)
    return block_table.shape[0]


def length_list(argument: str, lengths: Tensor) -> list[int]:
    """Lengths as numbers; none may be negative."""
    found: list[int] = lengths.tolist()
    if found and min(found) < 0:
        index = next(i for i, length in enumerate(found) if length < 0)
        raise wrong(argument, f"element {index} is {found[index]}, expected at least 0")
    return found


def query_lengths(cu_seqlens_q: Tensor, tokens: int) -> list[int]:
    """The lengths between cumulative ones, [0, ..., tokens]."""
    cumulative: list[int] = cu_seqlens_q.tolist()
    if cumulative[0] != 0:
        raise wrong("cu_seqlens_q", f"begins with {cumulative[0]}, expected 0")
    lengths = [end - start for start, end in pairwise(cumulative)]
    for index, length in enumerate(lengths, 1):
        if length < 0:
            text = f"falls from {cumulative[index - 1]} to {cumulative[index]} at element {index}"
            raise wrong("cu_seqlens_q", f"{text}; cumulative lengths never fall")
    if cumulative[-1] != tokens:
        raise wrong("cu_seqlens_q", f"ends with {cumulative[-1]}, but query has {tokens} tokens")
    return lengths


def holds_its_queries(lengths: list[int], kv: list[int]) -> None:
    """A sequence has a key for each of its query tokens."""
    for index, (new, length) in enumerate(zip(lengths, kv, strict=True)):
        if length < new:
            text = f"element {index} is {length}, less than its {new} query tokens"
            raise wrong("kv_lengths", f"{text}; keys of the queries are counted too")


def check_table_values(block_table: Tensor, kv_lengths: list[int], blocks: int, block_size: int) -> None:
    """Every block that a length reaches must be in the table and in the cache."""
    columns = block_table.shape[1]
    longest = max(kv_lengths, default=0)
    if longest > columns * block_size:
        index = kv_lengths.index(longest)
        raise wrong(
            "kv_lengths",
            f"element {index} is {longest}, but {columns} blocks of {block_size} in block_table hold {columns * block_size}",
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
                raise wrong("block_table", text)


def check_slots(kv_indices: Tensor, slots: int) -> None:
    """Slots of a cache; -1 leaves a token out."""
    if not kv_indices.numel():
        return
    low, high = (int(value) for value in kv_indices.aminmax())
    if low < -1 or high >= slots:
        raise wrong(
            "kv_indices",
            f"holds {high if high >= slots else low}, expected 0 to {slots - 1} (slots of the cache) or -1 (left out)",
        )


# ---- attention ----


def check_heads(heads: int, kv_heads: int, argument: str = "query") -> None:
    """Each head of keys serves the same number of heads of queries."""
    if kv_heads <= 0 or heads <= 0 or heads % kv_heads:
        raise wrong(argument, f"{heads} query heads cannot share {kv_heads} key heads evenly")


def check_output(attn_output: Tensor, query: Tensor, size_v: int, values: str) -> None:
    """What is written: a row for each query, heads of the size of values."""
    shape = [query.shape[0], query.shape[1], size_v]
    has_shape("attn_output", attn_output, shape, f"tokens and heads of query, head size of {values}")
    alike("query", query, "attn_output", attn_output)


def check_masking(query: Tensor, mask: Tensor | None, parameters: MaskParameters) -> None:
    """What changes the scores."""
    alibi_slopes, soft_cap = parameters.alibi_slopes, parameters.soft_cap
    finite("softmax_scale", parameters.softmax_scale)
    if mask is not None:
        has_rank("mask", mask, 2)
        has_dtype("mask", mask, MASKS)
        same_device("query", query, "mask", mask)
        if mask.shape[0] != query.shape[0]:
            raise wrong(
                "mask", f"has {mask.shape[0]} rows, expected {query.shape[0]}: one for each query token"
            )
    if alibi_slopes is not None:
        has_shape("alibi_slopes", alibi_slopes, [query.shape[1]], "one for each query head")
        has_dtype("alibi_slopes", alibi_slopes, FLOATS)
        same_device("query", query, "alibi_slopes", alibi_slopes)
    if not 0 <= soft_cap < inf:
        raise wrong("soft_cap", f"is {soft_cap}, expected a positive finite number, or 0 for none")


def check_paged(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, quantisation: CacheQuantisation
) -> int:
    """Query beside both caches; gives the size of a value head."""
    kv_scales, kv_zeros, quant_bits = quantisation
    has_rank("query", query, 3)
    has_dtype("query", query)
    size = check_cache("key_cache", key_cache, quant_bits, query, "query")
    size_v = check_cache("value_cache", value_cache, quant_bits, query, "query")
    if size != query.shape[2]:
        raise wrong("key_cache", f"has heads of {size} elements, expected {query.shape[2]} like query")
    if value_cache.shape[:3] != key_cache.shape[:3]:
        raise wrong(
            "value_cache",
            f"has shape {list(value_cache.shape)}, expected blocks and heads of key_cache, {list(key_cache.shape[:3])}",
        )
    if not key_cache.shape[1]:
        raise wrong("key_cache", f"has shape {list(key_cache.shape)}, expected blocks of at least one token")
    heads = key_cache.shape[2]
    check_heads(query.shape[1], heads)
    if quant_bits and kv_scales is None:
        raise wrong("kv_scales", f"is missing, expected scales for caches of {quant_bits} bits")
    for argument, value in (("kv_scales", kv_scales), ("kv_zeros", kv_zeros)):
        if value is not None:
            _check_pair(argument, value, heads, size, size_v, query)
    return size_v


def _check_pair(argument: str, value: Tensor, heads: int, size: int, size_v: int, query: Tensor) -> None:
    has_dtype(argument, value, FLOATS)
    same_device("query", query, argument, value)
    each = [1, heads] + ([heads * size] if size == size_v else [])
    if not value.dim() or value.shape[0] != 2 or value.numel() // 2 not in each:
        wanted = " or ".join(f"[2, {count}]" for count in each)
        raise wrong(
            argument,
            f"has shape {list(value.shape)}, expected [2] or {wanted}: for key_cache, then value_cache",
        )
