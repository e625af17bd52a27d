"""Random legal calls of dlinfer's caches and attention; `dlinfer_calls` says what they are for.

Slots of a cache behind a sequence's last key, and blocks of nobody, hold NaN: no call may look at them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dlinfer.conformance.samples.cache import bits_of, cache_like, scale_like, zero_like
from dlinfer.conformance.sampling import Arguments, Draw, empty_output

HEAD_SIZES = (1, 2, 5, 8, 16, 20, 33, 36, 64, 72, 80, 100, 128, 160, 192, 256)
_KEYS = (0, 1, 1, 2, 3, 17, 31, 63, 64, 65, 70, 129)
# Behind so many keys, decode reads them in ranges that are joined.
_LONG = (1023, 1024, 1025, 2100)
_BATCHES = (0, 1, 1, 2, 3, 5, 9, 65)
_CACHES = (
    *("plain",) * 5, "8 bits", "8 bits, zeros", "8 bits, unsigned", "8 bits, each head", "8 bits, each element", "4 bits",
    "4 bits, each head",
)  # fmt: skip


def maybe_spaced(draw: Draw, value: Tensor) -> Tensor:
    """As it is, or with gaps between rows."""
    return draw.spaced(value) if value.dim() > 1 and draw.choice((True, False, False)) else value


# ---- caches ----


def _head_sizes(draw: Draw, label: str) -> tuple[int, int]:
    """Of keys and values; bytes hold two elements of 4 bits."""
    size = draw.choice(HEAD_SIZES)
    if bits_of(label):
        return (2 * (size // 2) or 2,) * 2
    return size, draw.choice((size, size, draw.choice(HEAD_SIZES)))


def _fill(draw: Draw) -> Arguments:
    label, block_size = draw.choice(_CACHES), draw.choice((1, 3, 16, 17))
    size, size_v = _head_sizes(draw, label)
    heads, blocks = draw.choice((1, 2, 3, 8)), draw.choice((1, 4, 9))
    slots = draw.permutation(blocks * block_size)[: draw.choice((0, 1, 5, blocks * block_size))]
    slots = torch.where(draw.uniform(len(slots)) < 0.2, -1, slots)
    given: Arguments = {
        "key": maybe_spaced(draw, draw.normal(len(slots), heads, size)),
        "key_cache": cache_like(draw, blocks, block_size, heads, size, label),
        "value": maybe_spaced(draw, draw.normal(len(slots), heads, size_v)),
        "value_cache": cache_like(draw, blocks, block_size, heads, size_v, label),
        "kv_indices": slots.to(draw.index_dtype()),
    }
    for side in ("key", "value") if bits_of(label) else ():
        given[f"{side}_scale"] = scale = scale_like(draw, heads, size, label)
        given[f"{side}_zero"] = zero_like(draw, scale, label)
    return {**given, "quant_bits": bits_of(label)}


def _append(draw: Draw) -> Arguments:
    batch, heads = draw.choice((0, 1, 3)), draw.choice((1, 5))
    length, new, sizes = (
        draw.choice(_KEYS),
        draw.choice((0, 1, 9)),
        (draw.choice(HEAD_SIZES), draw.choice(HEAD_SIZES)),
    )
    given: Arguments = {}
    for tokens, kind in ((length, "cache"), (new, "state")):
        for side, size in zip(("key", "value"), sizes, strict=True):
            given[f"{side}_{kind}"] = draw.normal(batch, tokens, heads, size)
    return given


# ---- attention ----


def _pages(draw: Draw, keys: list[int], heads: int, sizes: tuple[int, int], label: str) -> Arguments:
    """Caches, and a table whose blocks lie anywhere in them; nothing else in them is a number."""
    block_size, spare = draw.choice((1, 3, 4, 16, 17, 64)), draw.choice((0, 3))
    used = [-(-length // block_size) for length in keys]
    order = draw.permutation(sum(used) + spare)
    table = torch.full((len(keys), max([*used, 1]) + spare), draw.choice((-1, 10**6)))
    caches = [cache_like(draw, sum(used) + spare, block_size, heads, size, label) for size in sizes]
    owned, start = torch.zeros(sum(used) + spare, block_size, dtype=torch.bool), 0
    for row, (count, length) in enumerate(zip(used, keys, strict=True)):
        table[row, :count] = order[start : start + count]
        mine = torch.arange(count * block_size).view(count, block_size) < length
        owned[order[start : start + count]] = mine
        start += count
    for cache in caches if not bits_of(label) else ():
        cache[~owned] = torch.nan
    given: Arguments = {
        "key_cache": caches[0],
        "value_cache": caches[1],
        "block_table": table.to(draw.index_dtype()),
    }
    if bits_of(label):
        scales = [scale_like(draw, heads, sizes[0], label) for _ in range(2)]
        zeros = [zero_like(draw, scale, label) for scale in scales]
        given["kv_zeros"] = None if zeros[0] is None else torch.stack([z for z in zeros if z is not None])
        given["kv_scales"] = torch.stack(scales)
    return {**given, "kv_lengths": torch.tensor(keys, dtype=draw.index_dtype()), "quant_bits": bits_of(label)}


def _heads(draw: Draw) -> tuple[int, int]:
    kv_heads = draw.choice((1, 1, 2, 3, 5))
    return kv_heads * draw.choice((1, 1, 2, 3, 7, 8, 9, 16)), kv_heads


def _scores(draw: Draw, query: Tensor) -> Arguments:
    given: Arguments = {"softmax_scale": draw.choice((query.shape[-1] ** -0.5, 0.2))}
    extra = draw.choice(("", "", "window", "cap", "slopes", "all"))
    if extra in ("window", "all"):
        given["window_left"] = draw.choice((0, 1, 7, 64, 2**40))
    if extra in ("cap", "all"):
        given["soft_cap"] = draw.choice((0.5, 20.0))
    if extra in ("slopes", "all"):
        given["alibi_slopes"] = 2.0 ** -draw.uniform(query.shape[1], low=1, high=8)
    return given


def _sight(draw: Draw, tokens: int, columns: int) -> Arguments:
    form = draw.choice(("", "", "all", "right", "hides", "added"))
    if form in ("all", "right"):
        return {"causal": False, "window_right": draw.choice((0, 3)) if form == "right" else -1}
    if form == "hides":
        return {"causal": draw.choice((True, False)), "mask": draw.uniform(tokens, columns + 1) < 0.5}
    return {"mask": draw.normal(tokens, columns, dtype=torch.float32)} if form == "added" else {}


def _queries(draw: Draw, tokens: int, heads: int, sizes: tuple[int, int]) -> Arguments:
    query, output = (
        draw.normal(tokens, heads, sizes[0]),
        empty_output(tokens, heads, sizes[1], dtype=draw.dtype),
    )
    return {"query": maybe_spaced(draw, query), "attn_output": maybe_spaced(draw, output)}


def _decode(draw: Draw) -> Arguments:
    (heads, kv_heads), label, batch = _heads(draw), draw.choice(_CACHES), draw.choice(_BATCHES)
    sizes = _head_sizes(draw, label)
    if label == "plain" and draw.choice((True, *(False,) * 9)):
        heads, kv_heads, sizes = draw.choice((2, 16)), 1, (576, 512)
    new = draw.choice((1, 1, 1, 2, 4))
    keys = [length if length >= new else 0 for length in (draw.choice(_KEYS) for _ in range(batch))]
    if keys and max(sizes) < 100 and draw.choice((True, *(False,) * 5)):
        keys[-1] = draw.choice(_LONG)
    given = _queries(draw, batch * new, heads, sizes)
    pages = _pages(draw, keys, kv_heads, sizes, label)
    return {
        **given,
        **pages,
        "max_kv_len": draw.choice((0, max([0, *keys]))),
        **_scores(draw, given["query"]),
    }


def _lengths(draw: Draw) -> tuple[list[int], list[int]]:
    """Of queries, and of the keys before them."""
    batch = min(draw.choice(_BATCHES), 9)
    return [draw.choice(_KEYS) for _ in range(batch)], [draw.choice((0, 0, 1, 30, 64)) for _ in range(batch)]


def _paged_prefill(draw: Draw) -> Arguments:
    (heads, kv_heads), label, (new, before) = _heads(draw), draw.choice(_CACHES), _lengths(draw)
    sizes = _head_sizes(draw, label)
    keys = [a + b for a, b in zip(new, before, strict=True)]
    given = _queries(draw, sum(new), heads, sizes)
    return {
        **given,
        **_pages(draw, keys, kv_heads, sizes, label),
        "cu_seqlens_q": torch.tensor([0, *new], dtype=torch.int64).cumsum(0).to(draw.index_dtype()),
        "max_q_len": draw.choice((0, max([0, *new]))),
        "max_kv_len": draw.choice((0, max([0, *keys]))),
        **_scores(draw, given["query"]),
        **_sight(draw, sum(new), max([0, *keys])),
    }


def _prefill(draw: Draw) -> Arguments:
    (heads, kv_heads), sizes, (new, before) = _heads(draw), _head_sizes(draw, "plain"), _lengths(draw)
    keys = [a + b for a, b in zip(new, before, strict=True)]
    given = _queries(draw, sum(new), heads, sizes)
    return {
        **given,
        "key": maybe_spaced(draw, draw.normal(sum(keys), kv_heads, sizes[0])),
        "value": maybe_spaced(draw, draw.normal(sum(keys), kv_heads, sizes[1])),
        "cu_seqlens_q": torch.tensor([0, *new], dtype=torch.int64).cumsum(0).to(draw.index_dtype()),
        "kv_lengths": torch.tensor(keys, dtype=draw.index_dtype()),
        "max_q_len": max([0, *new]),
        **_scores(draw, given["query"]),
        **_sight(draw, sum(new), max([0, *keys])),
    }


def _batch(draw: Draw, new: int, length: int) -> Arguments:
    (heads, kv_heads), (size, size_v), batch = (
        _heads(draw),
        _head_sizes(draw, "plain"),
        draw.choice((0, 1, 3)),
    )
    return {
        "query": draw.normal(batch, new, heads, size),
        "key": draw.normal(batch, length, kv_heads, size),
        "value": draw.normal(batch, length, kv_heads, size_v),
    }


def _fused(draw: Draw) -> Arguments:
    new = draw.choice((1, 2, 17, 65))
    given = _batch(draw, new, new + draw.choice((0, 1, 64)))
    masks = draw.choice((0, 1, max(len(given["query"]), 1)))
    if masks:
        given["mask"] = draw.uniform(masks, new, given["key"].shape[1]) < 0.5
    return {name: maybe_spaced(draw, value) if name != "mask" else value for name, value in given.items()}


def _increment(draw: Draw) -> Arguments:
    given = _batch(draw, draw.choice((1, 1, 3)), draw.choice(_KEYS))
    layout, heads = draw.choice(("BSH", "BSND", "BNSD")), given["query"].shape[2]
    scale = given["query"].shape[-1] ** -0.5
    if layout == "BSH":
        given = {name: value.flatten(-2) for name, value in given.items()}
    elif layout == "BNSD":
        given = {name: value.transpose(1, 2) for name, value in given.items()}
    return {**given, "num_heads": heads, "input_layout": layout, "softmax_scale": scale}


CALLS: dict[str, Callable[[Draw], Arguments]] = {
    "fill_kv_cache": _fill,
    "fill_contiguous_kvcache": _append,
    "paged_decode_attention": _decode,
    "paged_prefill_attention": _paged_prefill,
    "prefill_attention": _prefill,
    "fused_attention": _fused,
    "incre_flash_attention": _increment,
}
