"""Sparse attention."""

from __future__ import annotations

from torch import Tensor

from dlinfer.ops.cache import pages
from dlinfer.ops.calling import OVERLOADS, explained
from dlinfer.ops.lengths import cumulative

_index = OVERLOADS["lightning_indexer"]
_sparse = OVERLOADS["sparse_flash_attention"]


@explained("lightning_indexer")
def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    actual_seq_lengths_query: Tensor,
    actual_seq_lengths_key: Tensor,
    block_table: Tensor,
    sparse_count: int,
) -> Tensor:
    """For each token the positions of the keys with the largest scores, [tokens, 1, sparse_count]; -1 where there are no more."""
    lengths = cumulative(actual_seq_lengths_query), actual_seq_lengths_key
    return _index(query, pages(key), weights, *lengths, block_table, sparse_count)


@explained("sparse_flash_attention")
def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    softmax_scale: float,
    *,
    block_table: Tensor,
    actual_seq_lengths_query: Tensor,
    kv_seqlens: Tensor,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
) -> Tensor:
    """Attention of each token over the keys that were chosen for it."""
    return _sparse(
        query, pages(key), pages(value), sparse_indices, softmax_scale, block_table,
        cumulative(actual_seq_lengths_query), kv_seqlens, query_rope, None if key_rope is None else pages(key_rope),
    )  # fmt: skip
