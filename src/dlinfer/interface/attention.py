"""Declarations: attention over fresh keys and over paged caches. `sequences` has the checks they share."""

from __future__ import annotations

from math import inf

from torch import Tensor

from dlinfer.interface.checks import (
    FLOATS,
    INTEGERS,
    has_dtype,
    has_rank,
    has_shape,
    is_vector,
    same_device,
    same_dtype,
    together,
    wrong,
)
from dlinfer.interface.declaration import Operator, nothing
from dlinfer.interface.paging import check_block_table, check_table_values, length_list, query_lengths
from dlinfer.interface.sequences import check_extras, check_heads, check_output, check_paged

_PREFILL = "prefill_attention"
_PAGED = "paged_prefill_attention"
_DECODE = "paged_decode_attention"


# ---- fresh keys ----


def _check_prefill(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    softmax_scale: float,
    mask: Tensor | None,
    alibi_slopes: Tensor | None,
    soft_cap: float,
) -> None:
    has_rank(_PREFILL, "query", query, 3)
    has_dtype(_PREFILL, "query", query)
    has_shape(
        _PREFILL, "key", key, [None, None, query.shape[2]], "kv_tokens, kv_heads, the head size of query"
    )
    has_shape(_PREFILL, "value", value, [key.shape[0], key.shape[1], None], "tokens and heads of key")
    for argument, tensor in (("key", key), ("value", value)):
        same_dtype(_PREFILL, "query", query, argument, tensor)
        same_device(_PREFILL, "query", query, argument, tensor)
    check_heads(_PREFILL, query.shape[1], key.shape[1])
    is_vector(
        _PREFILL,
        "query_ends",
        query_ends,
        query_ends.shape[0] if query_ends.dim() else 1,
        "one for each sequence",
        query,
    )
    is_vector(_PREFILL, "kv_lengths", kv_lengths, query_ends.shape[0], "as many as query_ends", query)
    check_output(_PREFILL, attn_output, query, value.shape[2], "value")
    check_extras(_PREFILL, query, softmax_scale, mask, alibi_slopes, soft_cap)


def _prefill_values(
    query: Tensor,
    key: Tensor,
    query_ends: Tensor,
    kv_lengths: Tensor,
    max_q_len: int,
    causal: bool,
    mask: Tensor | None,
) -> None:
    lengths = query_lengths(_PREFILL, query_ends, query.shape[0])
    kv = length_list(_PREFILL, "kv_lengths", kv_lengths)
    if sum(kv) != key.shape[0]:
        raise wrong(_PREFILL, "kv_lengths", f"add up to {sum(kv)}, but key has {key.shape[0]} tokens")
    _agree(_PREFILL, lengths, kv, max_q_len, mask, causal)


def _agree(
    name: str, lengths: list[int], kv: list[int], max_q_len: int, mask: Tensor | None, causal: bool
) -> None:
    """Lengths of queries beside lengths of keys, the announced maximum and the mask."""
    longest = max(lengths, default=0)
    if 0 < max_q_len < longest:
        raise wrong(name, "max_q_len", f"is {max_q_len}, but a sequence has {longest} query tokens")
    if causal:
        _know_themselves(name, lengths, kv)
    if mask is not None and mask.shape[1] < max(kv, default=0):
        raise wrong(name, "mask", f"has {mask.shape[1]} columns, but a sequence has {max(kv)} keys")


def _know_themselves(name: str, lengths: list[int], kv: list[int]) -> None:
    """A sequence has a key for each of its query tokens."""
    for place, (new, known) in enumerate(zip(lengths, kv, strict=True)):
        if known < new:
            raise wrong(
                name,
                "kv_lengths",
                f"element {place} is {known}, less than its {new} query tokens; keys of the queries are counted too",
            )


# ---- paged keys ----


def _check_paged(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_ends: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    softmax_scale: float,
    mask: Tensor | None,
    alibi_slopes: Tensor | None,
    soft_cap: float,
    kv_scales: Tensor | None,
    kv_zeros: Tensor | None,
    quant_bits: int,
) -> None:
    size_v = check_paged(_PAGED, query, key_cache, value_cache, kv_scales, kv_zeros, quant_bits)
    batch = check_block_table(_PAGED, block_table, kv_lengths, query)
    is_vector(_PAGED, "query_ends", query_ends, batch, "one for each row of block_table", query)
    check_output(_PAGED, attn_output, query, size_v, "value_cache")
    check_extras(_PAGED, query, softmax_scale, mask, alibi_slopes, soft_cap)


def _paged_values(
    query: Tensor,
    key_cache: Tensor,
    block_table: Tensor,
    query_ends: Tensor,
    kv_lengths: Tensor,
    max_q_len: int,
    max_kv_len: int,
    causal: bool,
    mask: Tensor | None,
) -> None:
    lengths = query_lengths(_PAGED, query_ends, query.shape[0])
    kv = length_list(_PAGED, "kv_lengths", kv_lengths)
    _agree(_PAGED, lengths, kv, max_q_len, mask, causal)
    check_table_values(_PAGED, block_table, kv, key_cache.shape[0], key_cache.shape[1])
    _within(_PAGED, kv, max_kv_len)


def _within(name: str, kv: list[int], max_kv_len: int) -> None:
    if 0 < max_kv_len < max(kv, default=0):
        raise wrong(name, "max_kv_len", f"is {max_kv_len}, but a sequence has {max(kv)} keys")


def _check_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    softmax_scale: float,
    alibi_slopes: Tensor | None,
    soft_cap: float,
    kv_scales: Tensor | None,
    kv_zeros: Tensor | None,
    quant_bits: int,
) -> None:
    plain = (
        not quant_bits
        and kv_scales is None
        and kv_zeros is None
        and alibi_slopes is None
        and 0 <= soft_cap < inf
        and -inf < softmax_scale < inf
    )
    if plain and _fits(query, key_cache, value_cache, block_table, kv_lengths, attn_output):
        return
    size_v = check_paged(_DECODE, query, key_cache, value_cache, kv_scales, kv_zeros, quant_bits)
    batch = check_block_table(_DECODE, block_table, kv_lengths, query)
    if query.shape[0] % max(batch, 1) or (query.shape[0] and not batch):
        raise wrong(
            _DECODE,
            "query",
            f"has {query.shape[0]} tokens for {batch} sequences, expected the same number for each sequence",
        )
    check_output(_DECODE, attn_output, query, size_v, "value_cache")
    check_extras(_DECODE, query, softmax_scale, None, alibi_slopes, soft_cap)


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
    kv = length_list(_DECODE, "kv_lengths", kv_lengths)
    new = query.shape[0] // max(len(kv), 1)
    if new > 1:
        # No keys at all is a row of padding, of zeros.
        _know_themselves(_DECODE, [new if known else 0 for known in kv], kv)
    check_table_values(_DECODE, block_table, kv, key_cache.shape[0], key_cache.shape[1])
    _within(_DECODE, kv, max_kv_len)


_QUERY = "[tokens, heads, size], floating; the tokens of all sequences one after the other"
_ENDS = "[sequences], int32 or int64, CPU or device: where each sequence ends in query (cumulative lengths)"
_KV_LENGTHS = (
    "[sequences], int32 or int64, CPU or device: keys of each sequence, those of its query tokens included; a sequence"
    " of 0 keys gets zeros"
)
_MAX_Q = "at least the longest query length; 0 or less: unknown"
_MAX_KV = "at least the longest key length; 0 or less: unknown"
_OUTPUT = (
    "written: [tokens, heads, value_size], dtype of query. It may share memory with query, row over row"
    " (attn_output[t, h] on query[t, h, :value_size])"
)
_SCALE = "factor of the scores, which are computed in float32; weights may be rounded to the dtype of query"
_MASK = "[tokens, at least the longest key length]: bool, true hides a key; or floating, added to the scores. On top of causal"
_CACHE_K = (
    "[blocks, block_size, kv_heads, size], dtype of query, or quantised as `fill_kv_cache` does; any strides"
)
_CACHE_V = "[blocks, block_size, kv_heads, value_size], the same; may be a view of key_cache"
_TABLE = "[sequences, columns], int32 or int64: the blocks of each sequence in order; behind its last block anything"
_EXTRAS = {
    "alibi_slopes": "[heads]: -slope * distance is added to the scores",
    "window_left": "keys more than this many places before a query are hidden; -1: none are",
    "window_right": "keys more than this many places behind a query are hidden; -1: none are (causal hides all of them)",
    "soft_cap": "scores become soft_cap * tanh(score / soft_cap); 0: they stay",
}
_QUANT = {
    "kv_scales": "[2], [2, kv_heads] or [2, kv_heads * size], floating: for keys, then for values; needed with quant_bits",
    "kv_zeros": "as kv_scales; 0 if not given. An element is (stored - zero) * scale",
    "quant_bits": "0, 8 or 4",
}
_CAUSAL = "a query sees keys up to its own place; the last query of a sequence stands at its last key"

_OVER = {"attn_output": (("attn_output", "query"),)}

OPERATORS = (
    Operator(
        name=_PREFILL,
        schema="(Tensor query, Tensor key, Tensor value, Tensor query_ends, Tensor kv_lengths, SymInt max_q_len,"
        " Tensor(a!) attn_output, float softmax_scale, bool causal=True, Tensor? mask=None, Tensor? alibi_slopes=None,"
        " SymInt window_left=-1, SymInt window_right=-1, float soft_cap=0.) -> ()",
        summary="Attention of each sequence over its own fresh keys and values. Heads of queries share heads of keys evenly.",
        shapes={
            "query": _QUERY,
            "key": "[kv_tokens, kv_heads, size]",
            "value": "[kv_tokens, kv_heads, value_size]",
            "query_ends": _ENDS,
            "kv_lengths": "[sequences], int32 or int64, CPU or device: keys of each sequence",
            "max_q_len": _MAX_Q,
            "attn_output": _OUTPUT,
            "softmax_scale": _SCALE,
            "causal": _CAUSAL,
            "mask": _MASK,
            **_EXTRAS,
        },
        results="nothing",
        check=_check_prefill,
        fake=nothing,
        tolerance="sum",
        values=_prefill_values,
        indices=("query_ends", "kv_lengths"),
        over=_OVER,
    ),
    Operator(
        name=_PAGED,
        schema="(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor query_ends,"
        " Tensor kv_lengths, SymInt max_q_len, SymInt max_kv_len, Tensor(a!) attn_output, float softmax_scale,"
        " bool causal=True, Tensor? mask=None, Tensor? alibi_slopes=None, SymInt window_left=-1, SymInt window_right=-1,"
        " float soft_cap=0., Tensor? kv_scales=None, Tensor? kv_zeros=None, int quant_bits=0) -> ()",
        summary="Attention of each sequence over a paged cache, which holds its earlier keys (a shared prefix, earlier"
        " chunks) and those of its query tokens. Prefix caching and chunked prefill are this operator.",
        shapes={
            "query": _QUERY,
            "key_cache": _CACHE_K,
            "value_cache": _CACHE_V,
            "block_table": _TABLE,
            "query_ends": _ENDS,
            "kv_lengths": _KV_LENGTHS,
            "max_q_len": _MAX_Q,
            "max_kv_len": _MAX_KV,
            "attn_output": _OUTPUT,
            "softmax_scale": _SCALE,
            "causal": _CAUSAL,
            "mask": _MASK,
            **_EXTRAS,
            **_QUANT,
        },
        results="nothing",
        check=_check_paged,
        fake=nothing,
        tolerance="sum",
        values=_paged_values,
        indices=("block_table", "query_ends", "kv_lengths"),
        over=_OVER,
    ),
    Operator(
        name=_DECODE,
        schema="(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor kv_lengths,"
        " SymInt max_kv_len, Tensor(a!) attn_output, float softmax_scale, Tensor? alibi_slopes=None,"
        " SymInt window_left=-1, float soft_cap=0., Tensor? kv_scales=None, Tensor? kv_zeros=None, int quant_bits=0) -> ()",
        summary="Attention of the newest tokens over a paged cache that holds them already: one token for each sequence, or"
        " the same small number for all (speculative decoding), which then see each other causally.",
        shapes={
            "query": "[sequences * new, heads, size], floating",
            "key_cache": _CACHE_K,
            "value_cache": _CACHE_V,
            "block_table": _TABLE,
            "kv_lengths": _KV_LENGTHS,
            "max_kv_len": _MAX_KV,
            "attn_output": _OUTPUT,
            "softmax_scale": _SCALE,
            **{name: text for name, text in _EXTRAS.items() if name != "window_right"},
            **_QUANT,
        },
        results="nothing",
        check=_check_decode,
        fake=nothing,
        tolerance="sum",
        values=_decode_values,
        indices=("block_table", "kv_lengths"),
        over=_OVER,
    ),
)
