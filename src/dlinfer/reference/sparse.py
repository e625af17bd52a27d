"""Sparse attention over paged caches: choosing keys, and attending to them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dlinfer.interface.checks import upcast_dtype
from dlinfer.interface.kernels import reference
from dlinfer.reference.attention import Pages, token_slices


def index_scores(
    query: Tensor, key: Tensor, weights: Tensor, cu_seqlens_q: Tensor, kv_lengths: Tensor, block_table: Tensor
) -> Iterator[Tensor]:
    """For each sequence the scores [new, length]; minus infinity where a token does not see a key."""
    upcast = upcast_dtype(query)
    pages = Pages(block_table, upcast)
    for sequence, (rows, length) in enumerate(
        zip(token_slices(cu_seqlens_q), kv_lengths.tolist(), strict=True)
    ):
        new = rows.stop - rows.start
        keys = pages.read(key, sequence, length)[:, 0]
        products = torch.relu(query[rows].to(upcast) @ keys.T)
        scores = (products * weights[rows].to(upcast).unsqueeze(-1)).sum(1)
        positions = torch.arange(length, device=query.device)
        own = (length - new + torch.arange(new, device=query.device)).unsqueeze(1)
        yield scores.masked_fill(positions > own, -torch.inf)


@reference("lightning_indexer")
def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    block_table: Tensor,
    sparse_count: int,
) -> Tensor:
    result = torch.full((query.shape[0], 1, sparse_count), -1, dtype=torch.int32, device=query.device)
    start = 0
    for scores in index_scores(query, key, weights, cu_seqlens_q, kv_lengths, block_table):
        new, length = scores.shape
        count = min(sparse_count, length)
        best = scores.topk(count, -1)
        chosen = best.indices.masked_fill(best.values == -torch.inf, -1)
        result[start : start + new, 0, :count] = chosen.to(torch.int32)
        start += new
    return result


@reference("sparse_flash_attention")
def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    softmax_scale: float,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
) -> Tensor:
    upcast = upcast_dtype(query)
    pages = Pages(block_table, upcast)
    result = query.new_zeros([*query.shape[:2], value.shape[3]])
    for sequence, (rows, length) in enumerate(
        zip(token_slices(cu_seqlens_q), kv_lengths.tolist(), strict=True)
    ):
        if not length:
            continue
        scores = query[rows].to(upcast) @ pages.read(key, sequence, length)[:, 0].T
        if query_rope is not None and key_rope is not None:
            scores = scores + query_rope[rows].to(upcast) @ pages.read(key_rope, sequence, length)[:, 0].T
        hidden = ~_chosen(sparse_indices[rows, 0], length)
        weights = torch.softmax((scores * softmax_scale).masked_fill(hidden.unsqueeze(1), -torch.inf), -1)
        weights = weights.masked_fill(hidden.all(-1).reshape(-1, 1, 1), 0)
        weights = weights.to(query.dtype).to(upcast)
        result[rows] = (weights @ pages.read(value, sequence, length)[:, 0]).to(query.dtype)
    return result


def _chosen(indices: Tensor, length: int) -> Tensor:
    """[new, length]: true where a key was chosen. -1 goes to one more column, which is cut off."""
    columns = indices.to(torch.int64)
    columns = torch.where(columns < 0, length, columns)
    chosen = torch.zeros(indices.shape[0], length + 1, dtype=torch.bool, device=indices.device)
    return chosen.scatter(1, columns, True)[:, :length]
