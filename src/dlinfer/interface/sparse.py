"""Declarations: choosing keys for sparse attention, and attention over the chosen keys."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.interface.checks import (
    INTEGERS,
    alike,
    check_block_table,
    check_cache,
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
)
from dlinfer.interface.declaration import Operator


def _one_head(argument: str, cache: Tensor, size: int, query: Tensor, like: str = "query") -> None:
    check_cache(argument, cache, 0, query, "query")
    has_shape(argument, cache, [None, None, 1, size], f"blocks, block_size, one head, the size of {like}")
    if not cache.shape[1]:
        raise wrong(argument, f"has shape {list(cache.shape)}, expected blocks of at least one token")


def _check_index(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    block_table: Tensor,
    sparse_count: int,
) -> None:
    has_rank("query", query, 3)
    has_dtype("query", query)
    _one_head("key", key, query.shape[2], query)
    has_shape("weights", weights, query.shape[:2], "tokens and heads of query")
    has_dtype("weights", weights)
    same_device("query", query, "weights", weights)
    batch = check_block_table(block_table, kv_lengths, query)
    is_vector("cu_seqlens_q", cu_seqlens_q, batch + 1, "0, then one for each row of block_table", query)
    if not 0 < sparse_count < 2**31:
        raise wrong("sparse_count", f"is {sparse_count}, expected 1 to 2**31 - 1: positions are int32")


def _paged_values(
    query: Tensor, cache: Tensor, cu_seqlens_q: Tensor, kv_lengths: Tensor, block_table: Tensor
) -> list[tuple[int, int]]:
    lengths = query_lengths(cu_seqlens_q, query.shape[0])
    kv = length_list("kv_lengths", kv_lengths)
    holds_its_queries(lengths, kv)
    check_table_values(block_table, kv, cache.shape[0], cache.shape[1])
    return list(zip(lengths, kv, strict=True))


def _index_values(
    query: Tensor, key: Tensor, cu_seqlens_q: Tensor, kv_lengths: Tensor, block_table: Tensor
) -> None:
    _paged_values(query, key, cu_seqlens_q, kv_lengths, block_table)


def _fake_index(query: Tensor, sparse_count: int) -> Tensor:
    return query.new_empty([query.shape[0], 1, sparse_count], dtype=torch.int32)


def _check_sparse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    softmax_scale: float,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    query_rope: Tensor | None,
    key_rope: Tensor | None,
) -> None:
    has_rank("query", query, 3)
    has_dtype("query", query)
    finite("softmax_scale", softmax_scale)
    _one_head("key", key, query.shape[2], query)
    has_rank("value", value, 4)
    _one_head("value", value, value.shape[3], query, "value")
    if value.shape[:2] != key.shape[:2]:
        raise wrong("value", f"has shape {list(value.shape)}, expected the blocks of key")
    has_dtype("sparse_indices", sparse_indices, INTEGERS)
    has_shape("sparse_indices", sparse_indices, [query.shape[0], 1, None], "tokens of query, 1, chosen keys")
    same_device("query", query, "sparse_indices", sparse_indices)
    batch = check_block_table(block_table, kv_lengths, query)
    is_vector("cu_seqlens_q", cu_seqlens_q, batch + 1, "0, then one for each row of block_table", query)
    if (query_rope is None) != (key_rope is None):
        missing = "query_rope" if query_rope is None else "key_rope"
        raise wrong(missing, "is missing, expected query_rope and key_rope, or neither")
    if query_rope is not None and key_rope is not None:
        has_shape("query_rope", query_rope, [*query.shape[:2], None], "tokens and heads of query")
        alike("query", query, "query_rope", query_rope)
        _one_head("key_rope", key_rope, query_rope.shape[2], query, "query_rope")
        if key_rope.shape[:2] != key.shape[:2]:
            raise wrong("key_rope", f"has shape {list(key_rope.shape)}, expected the blocks of key")


def _sparse_values(
    query: Tensor,
    key: Tensor,
    sparse_indices: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
) -> None:
    pairs = _paged_values(query, key, cu_seqlens_q, kv_lengths, block_table)
    start = 0
    for index, (new, length) in enumerate(pairs):
        chosen = sparse_indices[start : start + new]
        if chosen.numel():
            low, high = (int(number) for number in chosen.aminmax())
            if low < -1 or high >= length:
                text = f"holds {high if high >= length else low} for sequence {index}, expected -1 (none) to {length - 1}"
                raise wrong("sparse_indices", text)
        start += new


def _fake_sparse(query: Tensor, value: Tensor) -> Tensor:
    return query.new_empty([*query.shape[:2], value.shape[3]])


_PAGES = {
    "query": "[tokens, heads, size], floating",
    "key": "[blocks, block_size, 1, size], a paged cache, dtype of query",
    "cu_seqlens_q": "[sequences + 1], int32 or int64, CPU or device: cumulative query lengths, from 0",
    "kv_lengths": "[sequences], int32 or int64, CPU or device: keys of each sequence",
    "block_table": "[sequences, columns], int32 or int64: the blocks of each sequence in order",
}

OPERATORS = (
    Operator(
        name="lightning_indexer",
        schema="(Tensor query, Tensor key, Tensor weights, Tensor cu_seqlens_q, Tensor kv_lengths, Tensor block_table,"
        " int sparse_count) -> Tensor",
        summary="For each token the keys with the largest scores, where a score is the sum over heads of"
        " weight * relu(query times key), and keys behind the token's own position are not visible.",
        shapes={
            "weights": "[tokens, heads], floating",
            **_PAGES,
            "sparse_count": "keys chosen for each token",
        },
        results="[tokens, 1, sparse_count], int32: positions in the token's sequence, in any order; -1 where there are no more",
        check=_check_index,
        fake=_fake_index,
        tolerance="positions",
        values=_index_values,
        indices=("cu_seqlens_q", "kv_lengths", "block_table"),
    ),
    Operator(
        name="sparse_flash_attention",
        schema="(Tensor query, Tensor key, Tensor value, Tensor sparse_indices, float softmax_scale, Tensor block_table,"
        " Tensor cu_seqlens_q, Tensor kv_lengths, Tensor? query_rope=None, Tensor? key_rope=None) -> Tensor",
        summary="Attention of each token over the keys that were chosen for it. One head of keys serves all heads of queries;"
        " a score is query times key, plus query_rope times key_rope. A token without keys gets zeros.",
        shapes={
            "value": "[blocks, block_size, 1, value_size], the same; often key itself",
            "sparse_indices": "[tokens, 1, chosen], int32 or int64: positions in the token's sequence, each once; -1: none",
            "softmax_scale": "factor of the scores, which are computed in float32; weights may be rounded to the dtype of query",
            **_PAGES,
            "query_rope": "[tokens, heads, rope], dtype of query",
            "key_rope": "[blocks, block_size, 1, rope], a paged cache",
        },
        results="[tokens, heads, value_size], dtype of query",
        check=_check_sparse,
        fake=_fake_sparse,
        tolerance="sum",
        values=_sparse_values,
        indices=("cu_seqlens_q", "kv_lengths", "block_table", "sparse_indices"),
    ),
)
