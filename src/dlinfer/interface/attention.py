"""Declarations: attention over fresh keys, over paged caches, and over batches of equal lengths."""

from __future__ import annotations

from math import inf

from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.interface.checks import (
    FLOATS,
    INTEGERS,
    MASKS,
    alike,
    check_block_table,
    check_heads,
    check_masking,
    check_output,
    check_paged,
    check_table_values,
    finite,
    has_dtype,
    has_rank,
    has_shape,
    holds_its_queries,
    is_vector,
    length_list,
    query_lengths,
    same_device,
    together,
)
from dlinfer.interface.declaration import CacheQuantisation, MaskParameters, Operator, nothing

# ---- fresh keys and paged caches ----


# ---- fresh keys ----


def _check_prefill(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    mask: Tensor | None,
    parameters: MaskParameters,
) -> None:
    has_rank("query", query, 3)
    has_dtype("query", query)
    has_shape("key", key, [None, None, query.shape[2]], "kv_tokens, kv_heads, the head size of query")
    has_shape("value", value, [key.shape[0], key.shape[1], None], "tokens and heads of key")
    for argument, tensor in (("key", key), ("value", value)):
        alike("query", query, argument, tensor)
    check_heads(query.shape[1], key.shape[1])
    count = max(cu_seqlens_q.shape[0], 1) if cu_seqlens_q.dim() else 1
    is_vector("cu_seqlens_q", cu_seqlens_q, count, "0, then one for each sequence", query)
    is_vector("kv_lengths", kv_lengths, count - 1, "one less than cu_seqlens_q", query)
    check_output(attn_output, query, value.shape[2], "value")
    check_masking(query, mask, parameters)


def _prefill_values(
    query: Tensor,
    key: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    max_q_len: int,
    causal: bool,
    mask: Tensor | None,
) -> None:
    lengths = query_lengths(cu_seqlens_q, query.shape[0])
    kv = length_list("kv_lengths", kv_lengths)
    if sum(kv) != key.shape[0]:
        raise wrong("kv_lengths", f"add up to {sum(kv)}, but key has {key.shape[0]} tokens")
    _agree(lengths, kv, max_q_len, mask, causal)


def _agree(lengths: list[int], kv: list[int], max_q_len: int, mask: Tensor | None, causal: bool) -> None:
    """Lengths of queries beside lengths of keys, the announced maximum and the mask."""
    longest = max(lengths, default=0)
    if 0 < max_q_len < longest:
        raise wrong("max_q_len", f"is {max_q_len}, but a sequence has {longest} query tokens")
    if causal:
        holds_its_queries(lengths, kv)
    if mask is not None and mask.shape[1] < max(kv, default=0):
        raise wrong("mask", f"has {mask.shape[1]} columns, but a sequence has {max(kv)} keys")


# ---- paged keys ----


def _check_paged(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    mask: Tensor | None,
    parameters: MaskParameters,
    quantisation: CacheQuantisation,
) -> None:
    size_v = check_paged(query, key_cache, value_cache, quantisation)
    batch = check_block_table(block_table, kv_lengths, query)
    is_vector("cu_seqlens_q", cu_seqlens_q, batch + 1, "0, then one for each row of block_table", query)
    check_output(attn_output, query, size_v, "value_cache")
    check_masking(query, mask, parameters)


def _paged_values(
    query: Tensor,
    key_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    max_q_len: int,
    max_kv_len: int,
    causal: bool,
    mask: Tensor | None,
) -> None:
    lengths = query_lengths(cu_seqlens_q, query.shape[0])
    kv = length_list("kv_lengths", kv_lengths)
    _agree(lengths, kv, max_q_len, mask, causal)
    check_table_values(block_table, kv, key_cache.shape[0], key_cache.shape[1])
    _within(kv, max_kv_len)


def _within(kv: list[int], max_kv_len: int) -> None:
    if 0 < max_kv_len < max(kv, default=0):
        raise wrong("max_kv_len", f"is {max_kv_len}, but a sequence has {max(kv)} keys")


def _check_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    parameters: MaskParameters,
    quantisation: CacheQuantisation,
) -> None:
    plain = (
        quantisation.absent
        and parameters.alibi_slopes is None
        and 0 <= parameters.soft_cap < inf
        and -inf < parameters.softmax_scale < inf
    )
    if plain and _fits(query, key_cache, value_cache, block_table, kv_lengths, attn_output):
        return
    size_v = check_paged(query, key_cache, value_cache, quantisation)
    batch = check_block_table(block_table, kv_lengths, query)
    if query.shape[0] % max(batch, 1) or (query.shape[0] and not batch):
        raise wrong(
            "query",
            f"has {query.shape[0]} tokens for {batch} sequences, expected the same number for each sequence",
        )
    check_output(attn_output, query, size_v, "value_cache")
    check_masking(query, None, parameters)


def _fits(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    kv_lengths: Tensor,
    output: Tensor,
) -> bool:
    """The common call at a glance, for it is made by every layer for every token; False: look closely."""
    shape, pages, table, dtype = query.shape, key_cache.shape, block_table.shape, query.dtype
    return (
        len(shape) == 3
        and len(pages) == 4
        and len(table) == 2
        and value_cache.shape == pages
        and output.shape == shape
        and shape[2] == pages[3]
        and pages[1] > 0
        and pages[2] > 0
        and shape[1] > 0
        and shape[1] % pages[2] == 0
        and kv_lengths.dim() == 1
        and kv_lengths.shape[0] == table[0]
        and table[0] > 0
        and shape[0] % table[0] == 0
        and dtype in FLOATS
        and key_cache.dtype is value_cache.dtype is output.dtype is dtype
        and block_table.dtype in INTEGERS
        and kv_lengths.dtype in INTEGERS
        and together(query, key_cache, value_cache, output)
        and (block_table.is_cpu or block_table.device == query.device)
        and (kv_lengths.is_cpu or kv_lengths.device == query.device)
    )


def _decode_values(
    query: Tensor, key_cache: Tensor, block_table: Tensor, kv_lengths: Tensor, max_kv_len: int
) -> None:
    kv = length_list("kv_lengths", kv_lengths)
    new = query.shape[0] // max(len(kv), 1)
    if new > 1:
        # No keys at all is a row of padding, of zeros.
        holds_its_queries([new if length else 0 for length in kv], kv)
    check_table_values(block_table, kv, key_cache.shape[0], key_cache.shape[1])
    _within(kv, max_kv_len)


_SHAPES = {
    "query": "[tokens, heads, size], floating; the tokens of all sequences one after the other",
    "key": "[kv_tokens, kv_heads, size]",
    "value": "[kv_tokens, kv_heads, value_size]",
    "key_cache": "[blocks, block_size, kv_heads, size], dtype of query, or quantised as `fill_kv_cache` does; any strides",
    "value_cache": "[blocks, block_size, kv_heads, value_size], the same; may be a view of key_cache",
    "block_table": "[sequences, columns], int32 or int64: the blocks of each sequence in order; behind its last block anything",
    "cu_seqlens_q": "[sequences + 1], int32 or int64, CPU or device: cumulative query lengths; tokens of sequence i are those"
    " from element i on, up to element i + 1",
    "kv_lengths": "[sequences], int32 or int64, CPU or device: keys of each sequence, those of its query tokens included; a"
    " sequence of 0 keys gets zeros",
    "max_q_len": "at least the longest query length; 0 or less: unknown",
    "max_kv_len": "at least the longest key length; 0 or less: unknown",
    "attn_output": "written: [tokens, heads, value_size], dtype of query. It may share memory with query, row over row"
    " (attn_output[t, h] on query[t, h, :value_size])",
    "softmax_scale": "factor of the scores, which are computed in float32; weights may be rounded to the dtype of query",
    "causal": "a query sees keys up to its own position; the last query of a sequence stands at its last key",
    "mask": "[tokens, at least the longest key length]: bool, true hides a key; or floating, added to the scores. On top of"
    " causal",
    "alibi_slopes": "[heads]: -slope * distance is added to the scores",
    "window_left": "keys more than this many positions before a query are hidden; -1: none are",
    "window_right": "keys more than this many positions behind a query are hidden; -1: none are (causal hides all of them)",
    "soft_cap": "scores become soft_cap * tanh(score / soft_cap); 0: they stay",
    "kv_scales": "[2], [2, kv_heads] or [2, kv_heads * size], floating: for keys, then for values; needed with quant_bits",
    "kv_zeros": "as kv_scales; 0 if not given. An element is (stored - zero) * scale",
    "quant_bits": "0, 8 or 4",
}

_OVER = {"attn_output": (("attn_output", "query"),)}


# ---- batches of equal lengths ----

LAYOUTS = ("BSH", "BSND", "BNSD")


def _check_increment(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, input_layout: str, softmax_scale: float
) -> None:
    if input_layout not in LAYOUTS:
        raise wrong("input_layout", f"is {input_layout!r}, expected one of {', '.join(LAYOUTS)}")
    has_dtype("query", query)
    finite("softmax_scale", softmax_scale)
    rank = 3 if input_layout == "BSH" else 4
    for argument, tensor in (("query", query), ("key", key), ("value", value)):
        has_rank(argument, tensor, rank)
        alike("query", query, argument, tensor)
        if tensor.shape[0] != query.shape[0]:
            raise wrong(argument, f"has batch {tensor.shape[0]}, expected {query.shape[0]} like query")
    heads = num_heads if input_layout == "BSH" else query.shape[2 if input_layout == "BSND" else 1]
    if num_heads <= 0 or heads != num_heads or query.shape[-1] % num_heads * (rank == 3):
        raise wrong("num_heads", f"is {num_heads}, which does not fit query {list(query.shape)}")
    size = query.shape[-1] // num_heads if rank == 3 else query.shape[-1]
    if not size and rank == 3:
        raise wrong("query", f"has shape {list(query.shape)}, expected heads of at least 1 element")
    if key.shape[-1] % size if rank == 3 else key.shape[-1] != size:
        raise wrong("key", f"has shape {list(key.shape)}, expected heads of {size} elements like query")
    kv_heads = key.shape[-1] // size if rank == 3 else key.shape[2 if input_layout == "BSND" else 1]
    check_heads(num_heads, kv_heads, "key")
    if value.shape[:-1] != key.shape[:-1] or (rank == 3 and value.shape[-1] % kv_heads):
        raise wrong("value", f"has shape {list(value.shape)}, expected batch, length and heads of key")


def _fake_increment(query: Tensor, key: Tensor, value: Tensor, num_heads: int, input_layout: str) -> Tensor:
    if input_layout == "BSH":
        size = query.shape[-1] // num_heads
        last = value.shape[-1] // (key.shape[-1] // size) * num_heads
    else:
        last = value.shape[-1]
    return query.new_empty([*query.shape[:-1], last])


def _check_fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    has_rank("query", query, 4)
    has_dtype("query", query)
    batch, length, heads, size = query.shape
    has_shape("key", key, [batch, None, None, size], "batch and head size of query")
    has_shape("value", value, [batch, key.shape[1], key.shape[2], None], "batch, length and heads of key")
    for argument, tensor in (("key", key), ("value", value)):
        alike("query", query, argument, tensor)
    check_heads(heads, key.shape[2])
    if key.shape[1] < length and mask is None:
        raise wrong("key", f"has {key.shape[1]} tokens, expected at least the {length} of query")
    if mask is not None:
        has_dtype("mask", mask, MASKS)
        same_device("query", query, "mask", mask)
        if mask.shape[-2:] != (length, key.shape[1]) or (mask.dim() == 3 and mask.shape[0] not in (1, batch)):
            raise wrong(
                "mask",
                f"has shape {list(mask.shape)}, expected [{batch} or 1, {length}, {key.shape[1]}] for query and key",
            )
        has_rank("mask", mask, 3)


def _fake_fused(query: Tensor, value: Tensor) -> Tensor:
    return query.new_empty([*query.shape[:-1], value.shape[-1]])


# ---- declarations ----

OPERATORS = (
    Operator(
        name="prefill_attention",
        schema="(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor kv_lengths, SymInt max_q_len,"
        " Tensor(a!) attn_output, float softmax_scale, bool causal=True, Tensor? mask=None, Tensor? alibi_slopes=None,"
        " SymInt window_left=-1, SymInt window_right=-1, float soft_cap=0.) -> ()",
        summary="Attention of each sequence over its own fresh keys and values. Heads of queries share heads of keys evenly.",
        shapes=_SHAPES | {"kv_lengths": "[sequences], int32 or int64, CPU or device: keys of each sequence"},
        results="nothing",
        check=_check_prefill,
        fake=nothing,
        tolerance="sum",
        values=_prefill_values,
        indices=("cu_seqlens_q", "kv_lengths"),
        over=_OVER,
    ),
    Operator(
        name="paged_prefill_attention",
        schema="(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor cu_seqlens_q,"
        " Tensor kv_lengths, SymInt max_q_len, SymInt max_kv_len, Tensor(a!) attn_output, float softmax_scale,"
        " bool causal=True, Tensor? mask=None, Tensor? alibi_slopes=None, SymInt window_left=-1, SymInt window_right=-1,"
        " float soft_cap=0., Tensor? kv_scales=None, Tensor? kv_zeros=None, int quant_bits=0) -> ()",
        summary="Attention of each sequence over a paged cache, which holds its earlier keys (a shared prefix, earlier"
        " chunks) and those of its query tokens. Prefix caching and chunked prefill are this operator.",
        shapes=_SHAPES,
        results="nothing",
        check=_check_paged,
        fake=nothing,
        tolerance="sum",
        values=_paged_values,
        indices=("block_table", "cu_seqlens_q", "kv_lengths"),
        over=_OVER,
    ),
    Operator(
        name="paged_decode_attention",
        schema="(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor kv_lengths,"
        " SymInt max_kv_len, Tensor(a!) attn_output, float softmax_scale, Tensor? alibi_slopes=None,"
        " SymInt window_left=-1, float soft_cap=0., Tensor? kv_scales=None, Tensor? kv_zeros=None, int quant_bits=0) -> ()",
        summary="Attention of the newest tokens over a paged cache that holds them already: one token for each sequence, or"
        " the same small number for all (speculative decoding), which then see each other causally.",
        shapes=_SHAPES | {"query": "[sequences * new, heads, size], floating"},
        results="nothing",
        check=_check_decode,
        fake=nothing,
        tolerance="sum",
        values=_decode_values,
        indices=("block_table", "kv_lengths"),
        over=_OVER,
    ),
    Operator(
        name="incre_flash_attention",
        schema="(Tensor query, Tensor key, Tensor value, int num_heads, str input_layout, float softmax_scale) -> Tensor",
        summary="Attention of new tokens over whole caches without pages; every key is visible.",
        shapes=_SHAPES
        | {
            "query": "BSH: [batch, new, heads * size]; BSND: [batch, new, heads, size]; BNSD: [batch, heads, new, size]",
            "key": "the same with its own length and kv_heads",
            "value": "like key, perhaps with another head size",
            "num_heads": "heads of query",
            "input_layout": "BSH, BSND or BNSD, for all of them",
        },
        results="like query, with the size of value heads",
        check=_check_increment,
        fake=_fake_increment,
        tolerance="sum",
    ),
    Operator(
        name="fused_attention",
        schema="(Tensor query, Tensor key, Tensor value, Tensor? mask=None) -> Tensor",
        summary="Attention of a batch of equal lengths; scores are divided by sqrt(size). Without a mask a query sees keys up to"
        " its own position, counted from the last key.",
        shapes={
            "query": "[batch, length, heads, size], floating",
            "key": "[batch, kv_length, kv_heads, size]",
            "value": "[batch, kv_length, kv_heads, value_size]",
            "mask": "[batch or 1, length, kv_length]: bool, true hides a key; or floating, added to the scores",
        },
        results="[batch, length, heads, value_size]",
        check=_check_fused,
        fake=_fake_fused,
        tolerance="sum",
    ),
)
