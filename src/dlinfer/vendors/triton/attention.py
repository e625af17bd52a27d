"""Attention over fresh keys and over paged caches: shapes of tiles, splits, launches."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.vendors.triton import tables
from dlinfer.vendors.triton.cache import matched
from dlinfer.vendors.triton.decode_kernels import decode_kernel, sum_kernel
from dlinfer.vendors.triton.form import Form, form, parts
from dlinfer.vendors.triton.language import HALVES, beside, cdiv, multiprocessors, power_above
from dlinfer.vendors.triton.prefill_kernel import prefill_kernel

Quantised = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, int, int]
"""Scales and zeros of keys, of values, and how far those of two heads, and of two elements, are apart."""


def _quantised(scales: Tensor | None, zeros: Tensor | None, bits: int, heads: int, size: int) -> Quantised:
    if not bits or scales is None:
        return None, None, None, None, 0, 0
    scale, zero = scales.reshape(2, -1), None if zeros is None else zeros.reshape(2, -1)
    if zero is not None and zero.shape != scale.shape:
        sides = [matched(scale[i], zero[i], heads, size) for i in range(2)]
        (ks, kz, *apart), (vs, vz, *_) = sides
        return ks, kz, vs, vz, apart[0], apart[1]
    scale, zero = scale.contiguous(), None if zero is None else zero.contiguous()
    _, _, head, element = matched(scale[0], None, heads, size)
    return (
        scale[0],
        None if zero is None else zero[0],
        scale[1],
        None if zero is None else zero[1],
        head,
        element,
    )


def _form(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tile: tables.Tile,
    paged: bool,
    causal: bool,
    window: tuple[int, int],
    soft_cap: float,
    slopes: Tensor | None,
    mask: Tensor | None,
    bits: int,
    quantised: Quantised,
) -> Form:
    size, share = query.shape[2], 2 if bits == 4 else 1
    size_v = value.shape[-1] * share
    return form(
        size, *parts(size, bits), size_v, *parts(size_v, bits), bits, quantised[1] is not None, quantised[5] > 0,
        query.shape[1] // key.shape[-2], key.shape[1] if paged else 0, causal, window[0] >= 0, window[1] >= 0, soft_cap > 0,
        slopes is not None, mask is not None, mask is not None and mask.dtype == torch.bool,
        tile.rows, tile.columns, "tf32" if query.dtype in HALVES else "ieee",
    )  # fmt: skip


def _prefill(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor | None,
    query_ends: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    softmax_scale: float,
    causal: bool,
    mask: Tensor | None,
    alibi_slopes: Tensor | None,
    window: tuple[int, int],
    soft_cap: float,
    kv_scales: Tensor | None = None,
    kv_zeros: Tensor | None = None,
    bits: int = 0,
) -> None:
    """Both operators of prefill; without a table, keys and values lie sequence after sequence."""
    device, (tokens, heads, size) = query.device, query.shape
    kv_heads, sequences, size_v = key.shape[-2], query_ends.shape[0], attn_output.shape[2]
    if not tokens or not heads or not size_v:
        return
    if not sequences:
        attn_output.zero_()
        return
    tile = tables.prefill(size + size_v, query.element_size())
    quantised = _quantised(kv_scales, kv_zeros, bits, kv_heads, size)
    shape = _form(
        query,
        key,
        value,
        tile,
        table is not None,
        causal,
        window,
        soft_cap,
        alibi_slopes,
        mask,
        bits,
        quantised,
    )
    if mask is not None:
        mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
        mask = mask if mask.stride(1) == 1 else mask.contiguous()
    if table is None:
        room, blocks, columns = key.shape[0], 0, 0
        key_strides, value_strides = (0, *key.stride()), (0, *value.stride())
    else:
        table = beside(table, device)
        blocks, columns = key.shape[0], table.stride(0)
        room = table.shape[1] * key.shape[1] if blocks else 0
        key_strides, value_strides = key.stride(), value.stride()
    tiles = tokens * shape.group // tile.rows + sequences
    mask_row, mask_columns = (0, 0) if mask is None else (mask.stride(0), mask.shape[1])
    prefill_kernel(
        (kv_heads * tiles,),
        (
            query, key, value, query if table is None else table, beside(query_ends, device), beside(kv_lengths, device),
            attn_output, query if mask is None else mask,
            None if alibi_slopes is None else alibi_slopes.contiguous(), *quantised[:4],
        ),
        (
            tokens, sequences, room, blocks, columns, mask_columns, softmax_scale, soft_cap, *window, *query.stride(),
            *key_strides, *value_strides, *attn_output.stride(), mask_row, *quantised[4:],
            kv_heads,
        ),
        F=shape, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def prefill_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    kv_lengths: Tensor,
    max_q_len: int,
    attn_output: Tensor,
    softmax_scale: float,
    causal: bool = True,
    mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    window_left: int = -1,
    window_right: int = -1,
    soft_cap: float = 0.0,
) -> None:
    """`prefill_attention` of the interface."""
    _prefill(
        query, key, value, None, query_ends, kv_lengths, attn_output, softmax_scale, causal, mask, alibi_slopes,
        (window_left, window_right), soft_cap,
    )  # fmt: skip


def paged_prefill_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_ends: Tensor,
    kv_lengths: Tensor,
    max_q_len: int,
    max_kv_len: int,
    attn_output: Tensor,
    softmax_scale: float,
    causal: bool = True,
    mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    window_left: int = -1,
    window_right: int = -1,
    soft_cap: float = 0.0,
    kv_scales: Tensor | None = None,
    kv_zeros: Tensor | None = None,
    quant_bits: int = 0,
) -> None:
    """`paged_prefill_attention` of the interface."""
    _prefill(
        query, key_cache, value_cache, block_table, query_ends, kv_lengths, attn_output, softmax_scale, causal, mask,
        alibi_slopes, (window_left, window_right), soft_cap, kv_scales, kv_zeros, quant_bits,
    )  # fmt: skip


def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    kv_lengths: Tensor,
    max_kv_len: int,
    attn_output: Tensor,
    softmax_scale: float,
    alibi_slopes: Tensor | None = None,
    window_left: int = -1,
    soft_cap: float = 0.0,
    kv_scales: Tensor | None = None,
    kv_zeros: Tensor | None = None,
    quant_bits: int = 0,
) -> None:
    """`paged_decode_attention` of the interface."""
    device, (tokens, heads, size), size_v = query.device, query.shape, attn_output.shape[2]
    if not tokens or not heads or not size_v:
        return
    batch, columns = block_table.shape
    blocks, block_size, kv_heads, _ = key_cache.shape
    new = tokens // batch
    tile = tables.decode(size + size_v, query.element_size(), new * heads // kv_heads)
    quantised = _quantised(kv_scales, kv_zeros, quant_bits, kv_heads, size)
    shape = _form(
        query, key_cache, value_cache, tile, True, new > 1, (window_left, -1), soft_cap, alibi_slopes,
        None, quant_bits, quantised,
    )  # fmt: skip
    block_table = beside(block_table, device)
    room = columns * block_size if blocks else 0
    programs = kv_heads * cdiv(new * shape.group, tile.rows)
    longest = min(max_kv_len, room) if max_kv_len > 0 else room
    width = (key_cache.shape[3] + value_cache.shape[3]) * key_cache.element_size()
    splits = tables.splits(programs * batch, longest, width, multiprocessors(device))
    partial = None
    if splits > 1:
        partial = torch.empty(splits * tokens * heads * (size_v + 2), dtype=torch.float32, device=device)
    decode_kernel(
        (programs, splits, batch),
        (
            query, key_cache, value_cache, block_table, beside(kv_lengths, device), attn_output, partial,
            None if alibi_slopes is None else alibi_slopes.contiguous(), *quantised[:4],
        ),
        (
            new, room, blocks, block_table.stride(0), softmax_scale, soft_cap, window_left, *query.stride(),
            *key_cache.stride(), *value_cache.stride(), *attn_output.stride(), *quantised[4:], heads, kv_heads,
        ),
        F=shape, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if partial is not None:
        sum_kernel(
            (heads, tokens), (partial, attn_output), (splits, heads, *attn_output.stride()),
            SIZE=size_v, WIDTH=power_above(size_v), SPLITS=min(power_above(splits), 32),
            num_warps=1 if splits * size_v <= 1024 else 4,
        )  # fmt: skip
