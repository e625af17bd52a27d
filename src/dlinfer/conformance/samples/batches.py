"""Samples: attention over batches of equal lengths."""

from __future__ import annotations

import torch

from dlinfer.conformance.case import Arguments, Samples
from dlinfer.conformance.drawing import Draw

_HEADS = ((4, 4, 16), (8, 2, 16), (6, 1, 32), (3, 3, 8))


def _increment(draw: Draw, label: str) -> Arguments:
    heads, kv_heads, size = draw.choice(_HEADS)
    batch, new, length = draw.choice((1, 3)), 1, draw.choice((1, 9, 33))
    if label.startswith("several"):
        new = 4
    size_v = size * 2 if label == "other size of values" else size
    query = draw.normal(batch, new, heads, size)
    key, value = draw.normal(batch, length, kv_heads, size), draw.normal(batch, length, kv_heads, size_v)
    layout = label if label in ("BSND", "BNSD") else draw.choice(("BSH", "BSND", "BNSD"))
    if layout == "BSH":
        query, key, value = (tensor.flatten(-2) for tensor in (query, key, value))
    elif layout == "BNSD":
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return {
        "query": query,
        "key": key,
        "value": value,
        "num_heads": heads,
        "input_layout": layout,
        "softmax_scale": draw.choice((size**-0.5, 0.2)),
    }


def _fused(draw: Draw, label: str) -> Arguments:
    heads, kv_heads, size = draw.choice(_HEADS)
    batch, new, before = draw.choice((1, 2)), draw.choice((1, 6, 17)), draw.choice((0, 5))
    length = new + before
    given: Arguments = {
        "query": draw.normal(batch, new, heads, size),
        "key": draw.normal(batch, length, kv_heads, size),
        "value": draw.normal(batch, length, kv_heads, size * 2 if label == "other size of values" else size),
    }
    if label == "bool mask":
        given["mask"] = draw.uniform(draw.choice((1, batch)), new, length) < 0.4
    elif label == "added mask":
        given["mask"] = draw.normal(1, new, length, dtype=torch.float32)
    return given


SAMPLES = {
    "incre_flash_attention": Samples(
        90, ("plain", "BSND", "BNSD", "several new tokens", "other size of values"), _increment
    ),
    "fused_attention": Samples(96, ("plain", "bool mask", "added mask", "other size of values"), _fused),
}
