"""Samples: sparse attention."""

from __future__ import annotations

import torch

from dlinfer.conformance.samples.attention import paged
from dlinfer.conformance.sampling import Arguments, Draw, Samples

_HOST = ("cu_seqlens_q", "kv_lengths", "block_table")


def _pages(draw: Draw, label: str, size: int) -> tuple[list[int], list[int], Arguments]:
    new = [1 if label == "one token each" else draw.choice((1, 3, 6)) for _ in range(draw.choice((1, 2, 3)))]
    kv = [length + draw.choice((0, 2, 25)) for length in new]
    return new, kv, paged(draw, "odd blocks" if label == "odd blocks" else "", kv, 1, size, size)


def _index(draw: Draw, label: str) -> Arguments:
    heads, size = draw.choice(((4, 16), (1, 8), (8, 32)))
    new, _, pages = _pages(draw, label, size)
    tokens = sum(new)
    return {
        "query": draw.normal(tokens, heads, size),
        "key": pages["key_cache"],
        "weights": draw.normal(tokens, heads, dtype=torch.float32 if label == "float32 weights" else None),
        "cu_seqlens_q": torch.tensor([0, *new]).cumsum(0).to(draw.index_dtype()),
        "kv_lengths": pages["kv_lengths"],
        "block_table": pages["block_table"],
        "sparse_count": 64 if label == "more than there are" else draw.choice((1, 4, 16)),
    }


def _sparse(draw: Draw, label: str) -> Arguments:
    heads, size = draw.choice(((4, 16), (1, 8), (8, 32)))
    new, kv, pages = _pages(draw, label, size)
    tokens, chosen = sum(new), draw.choice((1, 5, 12))
    indices = torch.full((tokens, 1, chosen), -1)
    start = 0
    for count, length in zip(new, kv, strict=True):
        for token in range(start, start + count):
            some = draw.permutation(length)[:chosen]
            indices[token, 0, : len(some)] = some
        start += count
    if label == "a token without keys":
        indices[0] = -1
    key, value = pages["key_cache"], pages["value_cache"]
    given: Arguments = {
        "query": draw.normal(tokens, heads, size),
        "key": key,
        "value": key if label == "values are the keys" else value,
        "sparse_indices": indices.to(draw.index_dtype()),
        "softmax_scale": size**-0.5,
        "block_table": pages["block_table"],
        "cu_seqlens_q": torch.tensor([0, *new]).cumsum(0).to(draw.index_dtype()),
        "kv_lengths": pages["kv_lengths"],
    }
    if label != "no rope":
        given["query_rope"] = draw.normal(tokens, heads, 8)
        given["key_rope"] = draw.normal(*key.shape[:3], 8)
    return given


SAMPLES = {
    "lightning_indexer": Samples(
        90,
        ("plain", "one token each", "odd blocks", "float32 weights", "more than there are"),
        _index,
        host=_HOST,
    ),
    "sparse_flash_attention": Samples(
        108,
        ("plain", "one token each", "odd blocks", "no rope", "values are the keys", "a token without keys"),
        _sparse,
        host=_HOST,
    ),
}
