"""Samples: attention over fresh keys, over paged caches and over batches of equal lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.conformance.samples.cache import QUANTISED, bits_of, cache_like, scale_like, zero_like
from dlinfer.conformance.sampling import Arguments, Draw, Samples, empty_output

# heads, kv_heads, size
_HEADS = ((4, 4, 16), (8, 2, 16), (6, 1, 32), (9, 3, 64), (3, 3, 8), (2, 1, 128))
_CHANGES = (
    "plain",
    "scale",
    "window",
    "soft cap",
    "alibi",
    "alibi and window",
    "soft cap and window",
    "other size of values",
    "large scores",
    "output in the query",
    "an empty sequence",
    "longest unknown",
    "strided",
)
_MASKED = ("not causal", "window on both sides", "bool mask", "added mask", "a query that sees nothing")
_PAGES = ("one token in a block", "odd blocks", "shared blocks", "values in the keys", "strided caches")


def _extras(draw: Draw, label: str, query: Tensor) -> Arguments:
    """What changes scores."""
    given: Arguments = {"softmax_scale": 0.3 if label == "scale" else query.shape[-1] ** -0.5}
    if "window" in label:
        given["window_left"] = draw.choice((0, 1, 3, 8))
    if "soft cap" in label:
        given["soft_cap"] = draw.choice((1.0, 5.0, 30.0))
    if "alibi" in label:
        given["alibi_slopes"] = 2.0 ** -torch.arange(1.0, query.shape[1] + 1)
    return given


def _masks(draw: Draw, label: str, tokens: int, columns: int) -> Arguments:
    if label == "not causal":
        return {"causal": False}
    if label == "window on both sides":
        return {"causal": False, "window_left": draw.choice((1, 4)), "window_right": draw.choice((0, 2))}
    if label == "bool mask":
        return {"causal": False, "mask": draw.uniform(tokens, columns + 3) < 0.4}
    if label == "added mask":
        mask = draw.normal(tokens, columns, dtype=torch.float32)
        return {"causal": draw.choice((True, False)), "mask": mask.masked_fill(mask > 1, -torch.inf)}
    if label == "a query that sees nothing":
        mask = draw.uniform(tokens, columns) < 0.2
        mask[0] = True
        return {"causal": True, "mask": mask}
    return {}


def _query(draw: Draw, label: str, tokens: int, heads: int, size: int, size_v: int) -> tuple[Tensor, Tensor]:
    """Query, and memory for the output, which may be the query's own."""
    query = draw.normal(tokens, heads, size, scale=8.0 if label == "large scores" else 1.0)
    if label == "output in the query":
        return query, query[..., :size_v]
    output = empty_output(tokens, heads, size_v, dtype=query.dtype)
    if label == "strided":
        return draw.spaced(query), draw.spaced(output)
    return query, output


def _sizes(draw: Draw, label: str) -> tuple[int, int, int, int]:
    heads, kv_heads, size = draw.choice(_HEADS)
    smaller = label in ("other size of values", "values in the keys")
    return heads, kv_heads, size, size // 2 if smaller else size


def _lengths(draw: Draw, label: str, longest: int = 24) -> list[int]:
    found = [draw.choice((1, 2, 5, 9, longest)) for _ in range(draw.choice((1, 2, 3)))]
    if label == "an empty sequence":
        found.insert(draw.choice((0, len(found))), 0)
    return found


def _prefill(draw: Draw, label: str) -> Arguments:
    heads, kv_heads, size, size_v = _sizes(draw, label)
    lengths = _lengths(draw, label, 40)
    kv = [length + draw.choice((0, 3)) for length in lengths] if label == "keys of their own" else lengths
    query, output = _query(draw, label, sum(lengths), heads, size, size_v)
    key, value = draw.normal(sum(kv), kv_heads, size), draw.normal(sum(kv), kv_heads, size_v)
    dtype = draw.index_dtype()
    return {
        "query": query,
        "key": draw.spaced(key) if label == "strided" else key,
        "value": draw.spaced(value) if label == "strided" else value,
        "cu_seqlens_q": torch.tensor([0, *lengths]).cumsum(0).to(dtype),
        "kv_lengths": torch.tensor(kv, dtype=dtype),
        "max_q_len": -1 if label == "longest unknown" else max(lengths),
        "attn_output": output,
        **_extras(draw, label, query),
        **_masks(draw, label, sum(lengths), max(kv)),
    }


def paged(draw: Draw, label: str, kv: list[int], kv_heads: int, size: int, size_v: int) -> Arguments:
    """Caches, and a table whose blocks lie anywhere in them."""
    block_size = {"one token in a block": 1, "odd blocks": 7}.get(label) or draw.choice((4, 8, 16))
    used = [-(-length // block_size) for length in kv]
    columns = max([*used, 1]) + draw.choice((0, 2))
    blocks = sum(used) + draw.choice((1, 5))
    order = draw.permutation(blocks)
    # What lies behind a sequence's last block is never looked at.
    table = torch.full((len(kv), columns), draw.choice((0, -1, 10**6)))
    start = 0
    for row, count in enumerate(used):
        table[row, :count] = order[start : start + count]
        start += count
    if label == "shared blocks":
        table[:, 0] = order[0]
    key_cache = cache_like(draw, blocks, block_size, kv_heads, size, label)
    value_cache = cache_like(draw, blocks, block_size, kv_heads, size_v, label)
    given: Arguments = {
        "key_cache": key_cache,
        "value_cache": key_cache[..., :size_v] if label == "values in the keys" else value_cache,
        "block_table": table.to(draw.index_dtype()),
        "kv_lengths": torch.tensor(kv, dtype=draw.index_dtype()),
    }
    if bits_of(label):
        scales = [scale_like(draw, kv_heads, size, label) for _ in range(2)]
        zeros = [zero_like(draw, scale, label) for scale in scales]
        given["kv_scales"] = torch.stack(scales)
        given["kv_zeros"] = (
            None if zeros[0] is None else torch.stack([zero for zero in zeros if zero is not None])
        )
        given["quant_bits"] = bits_of(label)
    return given


def _paged(draw: Draw, label: str) -> Arguments:
    heads, kv_heads, size, size_v = _sizes(draw, label)
    lengths = _lengths(draw, label)
    before = 0 if label == "nothing before" else draw.choice((0, 1, 13, 30))
    kv = [length + before if length else 0 for length in lengths]
    query, output = _query(draw, label, sum(lengths), heads, size, size_v)
    return {
        "query": query,
        **paged(draw, label, kv, kv_heads, size, size_v),
        "cu_seqlens_q": torch.tensor([0, *lengths]).cumsum(0).to(draw.index_dtype()),
        "max_q_len": -1 if label == "longest unknown" else max(lengths),
        "max_kv_len": -1 if label == "longest unknown" else max(kv),
        "attn_output": output,
        **_extras(draw, label, query),
        **_masks(draw, label, sum(lengths), max(kv)),
    }


def _decode(draw: Draw, label: str) -> Arguments:
    heads, kv_heads, size, size_v = _sizes(draw, label)
    new = draw.choice((2, 4)) if label == "several new tokens" else 1
    kv = [max(length, new) for length in _lengths(draw, label, 70)]
    if label == "an empty sequence":
        kv[-1] = 0
    query, output = _query(draw, label, len(kv) * new, heads, size, size_v)
    return {
        "query": query,
        **paged(draw, label, kv, kv_heads, size, size_v),
        "max_kv_len": -1 if label == "longest unknown" else max(kv),
        "attn_output": output,
        **_extras(draw, label, query),
    }


# ---- batches of equal lengths ----

_BATCH_HEADS = ((4, 4, 16), (8, 2, 16), (6, 1, 32), (3, 3, 8))


def _increment(draw: Draw, label: str) -> Arguments:
    heads, kv_heads, size = draw.choice(_BATCH_HEADS)
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
    heads, kv_heads, size = draw.choice(_BATCH_HEADS)
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
    "prefill_attention": Samples(
        285, (*_CHANGES, *_MASKED, "keys of their own"), _prefill, host=("cu_seqlens_q", "kv_lengths")
    ),
    "paged_prefill_attention": Samples(
        360,
        (*_CHANGES, *_MASKED, *QUANTISED, *_PAGES, "nothing before"),
        _paged,
        host=("cu_seqlens_q", "kv_lengths", "block_table"),
    ),
    "paged_decode_attention": Samples(
        375,
        (*_CHANGES, *QUANTISED, *_PAGES, "several new tokens"),
        _decode,
        host=("kv_lengths", "block_table"),
    ),
    "incre_flash_attention": Samples(
        90, ("plain", "BSND", "BNSD", "several new tokens", "other size of values"), _increment
    ),
    "fused_attention": Samples(96, ("plain", "bool mask", "added mask", "other size of values"), _fused),
}
