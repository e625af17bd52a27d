"""Attention over fresh keys, over paged caches and over batches of equal lengths: shapes of tiles, splits, launches."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.interface.declaration import CacheQuantisation, MaskParameters
from dlinfer.vendors.triton import tables
from dlinfer.vendors.triton.attention_kernels import decode_kernel, prefill_kernel, sum_kernel
from dlinfer.vendors.triton.attention_tiles import AttentionConfig, attention_config, parts
from dlinfer.vendors.triton.cache import matched
from dlinfer.vendors.triton.launching import HALF_DTYPES, beside, cdiv, kernel, multiprocessors, power_above

_UNQUANTISED = CacheQuantisation()

Quantised = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, int, int]
"""Scales and zeros of keys, of values, and the strides of heads and of elements."""


def _quantised(quantisation: CacheQuantisation, heads: int, size: int) -> Quantised:
    scales, zeros, bits = quantisation
    if not bits or scales is None:
        return None, None, None, None, 0, 0
    scale, zero = scales.reshape(2, -1), None if zeros is None else zeros.reshape(2, -1)
    if zero is not None and zero.shape != scale.shape:
        sides = [matched(scale[i], zero[i], heads, size) for i in range(2)]
        (ks, kz, *strides), (vs, vz, *_) = sides
        return ks, kz, vs, vz, strides[0], strides[1]
    scale, zero = scale.contiguous(), None if zero is None else zero.contiguous()
    _, _, head, element = matched(scale[0], None, heads, size)
    key_zero, value_zero = (None, None) if zero is None else (zero[0], zero[1])
    return scale[0], key_zero, scale[1], value_zero, head, element


def _config(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tile: tables.Tile,
    paged: bool,
    mask: Tensor | None,
    parameters: MaskParameters,
    bits: int,
    quantised: Quantised,
) -> AttentionConfig:
    size, share = query.shape[2], 2 if bits == 4 else 1
    size_v = value.shape[-1] * share
    return attention_config(
        size, *parts(size, bits), size_v, *parts(size_v, bits), bits, quantised[1] is not None, quantised[5] > 0,
        query.shape[1] // key.shape[-2], key.shape[1] if paged else 0, parameters.causal, parameters.window_left >= 0,
        parameters.window_right >= 0, parameters.soft_cap > 0, parameters.alibi_slopes is not None,
        mask is not None, mask is not None and mask.dtype == torch.bool,
        tile.rows, tile.columns, "tf32" if query.dtype in HALF_DTYPES else "ieee",
    )  # fmt: skip


def _prefill(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor | None,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    mask: Tensor | None,
    parameters: MaskParameters,
    quantisation: CacheQuantisation = _UNQUANTISED,
) -> None:
    """Both operators of prefill; without a table, keys and values lie sequence after sequence."""
    device, (tokens, heads, size) = query.device, query.shape
    kv_heads, sequences, size_v = key.shape[-2], cu_seqlens_q.shape[0] - 1, attn_output.shape[2]
    if not tokens or not heads or not size_v:
        return
    if not sequences:
        attn_output.zero_()
        return
    tile = tables.prefill(size + size_v, query.element_size())
    bits, slopes = quantisation.quant_bits, parameters.alibi_slopes
    quantised = _quantised(quantisation, kv_heads, size)
    config = _config(query, key, value, tile, table is not None, mask, parameters, bits, quantised)
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
    tiles = tokens * config.group // tile.rows + sequences
    mask_row, mask_columns = (0, 0) if mask is None else (mask.stride(0), mask.shape[1])
    prefill_kernel(
        (kv_heads * tiles,),
        (
            query, key, value, query if table is None else table, beside(cu_seqlens_q, device), beside(kv_lengths, device),
            attn_output, query if mask is None else mask,
            None if slopes is None else slopes.contiguous(), *quantised[:4],
        ),
        (
            tokens, sequences, room, blocks, columns, mask_columns, parameters.softmax_scale, parameters.soft_cap,
            parameters.window_left, parameters.window_right, *query.stride(),
            *key_strides, *value_strides, *attn_output.stride(), mask_row, *quantised[4:],
            kv_heads,
        ),
        F=config, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


@kernel("prefill_attention")
def prefill_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    mask: Tensor | None,
    parameters: MaskParameters,
) -> None:
    _prefill(query, key, value, None, cu_seqlens_q, kv_lengths, attn_output, mask, parameters)


@kernel("paged_prefill_attention")
def paged_prefill_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    mask: Tensor | None,
    parameters: MaskParameters,
    quantisation: CacheQuantisation,
) -> None:
    caches = key_cache, value_cache
    _prefill(
        query, *caches, block_table, cu_seqlens_q, kv_lengths, attn_output, mask, parameters, quantisation
    )


@kernel("paged_decode_attention")
def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    kv_lengths: Tensor,
    max_kv_len: int,
    attn_output: Tensor,
    parameters: MaskParameters,
    quantisation: CacheQuantisation,
) -> None:
    device, (tokens, heads, size), size_v = query.device, query.shape, attn_output.shape[2]
    if not tokens or not heads or not size_v:
        return
    batch, columns = block_table.shape
    blocks, block_size, kv_heads, _ = key_cache.shape
    new = tokens // batch
    tile = tables.decode(size + size_v, query.element_size(), new * heads // kv_heads)
    # One new token sees all keys: no mask has to be made.
    parameters, bits = parameters._replace(causal=new > 1), quantisation.quant_bits
    slopes, quantised = parameters.alibi_slopes, _quantised(quantisation, kv_heads, size)
    config = _config(query, key_cache, value_cache, tile, True, None, parameters, bits, quantised)
    block_table = beside(block_table, device)
    room = columns * block_size if blocks else 0
    programs = kv_heads * cdiv(new * config.group, tile.rows)
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
            None if slopes is None else slopes.contiguous(), *quantised[:4],
        ),
        (
            new, room, blocks, block_table.stride(0), parameters.softmax_scale, parameters.soft_cap,
            parameters.window_left, *query.stride(), *key_cache.stride(), *value_cache.stride(),
            *attn_output.stride(), *quantised[4:], heads, kv_heads,
        ),
        F=config, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if partial is not None:
        sum_kernel(
            (heads, tokens), (partial, attn_output), (splits, heads, *attn_output.stride()),
            SIZE=size_v, WIDTH=power_above(size_v), SPLITS=min(power_above(splits), 32),
            num_warps=1 if splits * size_v <= 1024 else 4,
        )  # fmt: skip


# ---- batches of equal lengths: sequences of a prefill, one after the other ----


def _attended(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, mask: Tensor | None = None
) -> Tensor:
    """[batch, new, heads, size] over [batch, length, kv_heads, size]."""
    batch, new, heads, _ = query.shape
    length, size_v = key.shape[1], value.shape[3]
    out = query.new_empty([batch, new, heads, size_v])
    cu_seqlens_q = torch.arange(batch + 1, dtype=torch.int32, device=query.device) * new
    lengths = torch.full((batch,), length, dtype=torch.int32, device=query.device)
    if mask is not None:
        mask = mask.expand(batch, new, length).reshape(batch * new, length)
    query, key, value = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
    prefill_attention(
        query, key, value, cu_seqlens_q, lengths, out.flatten(0, 1), mask, MaskParameters(scale, causal)
    )
    return out


@kernel("fused_attention")
def fused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return _attended(query, key, value, query.shape[-1] ** -0.5, mask is None, mask)


@kernel("incre_flash_attention")
def incre_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, input_layout: str, softmax_scale: float
) -> Tensor:
    if input_layout == "BNSD":
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        return _attended(query, key, value, softmax_scale, False).transpose(1, 2).contiguous()
    if input_layout == "BSND":
        return _attended(query, key, value, softmax_scale, False)
    query = query.unflatten(-1, (num_heads, -1))
    kv_heads = key.shape[-1] // query.shape[-1]
    key, value = key.unflatten(-1, (kv_heads, -1)), value.unflatten(-1, (kv_heads, -1))
    return _attended(query, key, value, softmax_scale, False).flatten(-2)
