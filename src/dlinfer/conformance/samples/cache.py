"""Samples: filling caches."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.conformance.sampling import Arguments, Draw, Samples

QUANTISED = (
    "8 bits",
    "8 bits, zeros",
    "8 bits, unsigned",
    "8 bits, each head",
    "8 bits, each element",
    "4 bits",
)
_FILL = (
    "plain",
    "tokens left out",
    "keys alone",
    "other size of values",
    "strided caches",
    *QUANTISED,
    "4 bits, each head",
    "values beyond the range",
)


def cache_like(draw: Draw, blocks: int, block_size: int, heads: int, size: int, label: str) -> Tensor:
    """A cache full of earlier values, stored as the label says."""
    if label.startswith("4 bits"):
        return draw.integers(0, 256, blocks, block_size, heads, size // 2, dtype=torch.uint8)
    if label == "8 bits, unsigned":
        return draw.integers(0, 256, blocks, block_size, heads, size, dtype=torch.uint8)
    if label.startswith("8 bits") or label == "values beyond the range":
        return draw.integers(-128, 128, blocks, block_size, heads, size, dtype=torch.int8)
    value = draw.normal(blocks, block_size, heads, size)
    return draw.spaced(value) if label == "strided caches" else value


def bits_of(label: str) -> int:
    """Bits of an element, 0 if it is not quantised."""
    return (
        4
        if label.startswith("4")
        else 8
        if label.startswith("8") or label == "values beyond the range"
        else 0
    )


def scale_like(draw: Draw, heads: int, size: int, label: str) -> Tensor:
    """A scale with as many elements as the label says, so that normal values fill the range."""
    count = heads * size if label.endswith("each element") else heads if label.endswith("each head") else 1
    step = {0: 1.0, 4: 0.4, 8: 0.03}[bits_of(label)] * (0.1 if label == "values beyond the range" else 1)
    return draw.uniform(count, low=step * 0.7, high=step * 1.3)


def zero_like(draw: Draw, scale: Tensor, label: str) -> Tensor | None:
    """Unsigned numbers need a zero in the middle."""
    if bits_of(label) == 4:
        return draw.integers(6, 10, scale.numel()).float()
    if label == "8 bits, unsigned":
        return draw.integers(120, 136, scale.numel()).float()
    return draw.integers(-9, 10, scale.numel()).float() if label == "8 bits, zeros" else None


def _fill(draw: Draw, label: str) -> Arguments:
    blocks, block_size = draw.choice(((4, 4), (2, 16), (9, 1), (3, 7)))
    heads, size = draw.choice(((1, 8), (2, 16), (3, 64), (8, 4)))
    size_v = size // 2 if label == "other size of values" else size
    slots = blocks * block_size
    tokens = draw.choice((1, 5, slots))
    indices = draw.permutation(slots)[:tokens].to(draw.index_dtype())
    if label == "tokens left out":
        indices[:: draw.choice((1, 2))] = -1
    given: Arguments = {
        "key": draw.normal(tokens, heads, size),
        "key_cache": cache_like(draw, blocks, block_size, heads, size, label),
        "value": draw.normal(tokens, heads, size_v),
        "value_cache": cache_like(draw, blocks, block_size, heads, size_v, label),
        "kv_indices": indices,
    }
    if label == "keys alone":
        return {**given, "value": None, "value_cache": None}
    if bits_of(label):
        for side in ("key", "value"):
            scale = scale_like(draw, heads, size, label)
            given[f"{side}_scale"] = scale
            given[f"{side}_zero"] = zero_like(draw, scale, label)
        given["quant_bits"] = bits_of(label)
    return given


def _append(draw: Draw, label: str) -> Arguments:
    batch, length, heads, size = draw.choice(((1, 0, 2, 8), (2, 5, 3, 4), (3, 16, 1, 16)))
    new = 1 if label == "one token" else draw.choice((2, 7))
    size_v = size + 4 if label == "other size of values" else size
    return {
        "key_cache": draw.normal(batch, length, heads, size),
        "value_cache": draw.normal(batch, length, heads, size_v),
        "key_state": draw.normal(batch, new, heads, size),
        "value_state": draw.normal(batch, new, heads, size_v),
    }


def _length(draw: Draw, label: str) -> Arguments:
    return {"cache": draw.normal(2, draw.choice((0, 1, 9)), 2, 4)}


SAMPLES = {
    "fill_kv_cache": Samples(234, _FILL, _fill, host=("kv_indices",)),
    "fill_contiguous_kvcache": Samples(36, ("plain", "one token", "other size of values"), _append),
    "get_cache_len": Samples(9, ("plain",), _length),
}
