"""Attention over fresh keys and over paged caches, one sequence after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.interface.precision import wide
from dlinfer.reference.quantisation import restored
from dlinfer.reference.scores import Sight, attend


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
    sight = Sight(softmax_scale, causal, alibi_slopes, window_left, window_right, soft_cap)
    start = first = 0
    for end, length in zip(query_ends.tolist(), kv_lengths.tolist(), strict=True):
        rows, keys = slice(start, end), slice(first, first + length)
        hidden = None if mask is None else mask[rows]
        attn_output[rows] = attend(query[rows], key[keys], value[keys], sight, hidden)
        start, first = end, first + length


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
    sight = Sight(softmax_scale, causal, alibi_slopes, window_left, window_right, soft_cap)
    pages = Pages(block_table, wide(query), kv_scales, kv_zeros, quant_bits)
    start = 0
    for sequence, (end, length) in enumerate(zip(query_ends.tolist(), kv_lengths.tolist(), strict=True)):
        rows = slice(start, end)
        hidden = None if mask is None else mask[rows]
        key, value = pages.read(key_cache, sequence, length, 0), pages.read(value_cache, sequence, length, 1)
        attn_output[rows] = attend(query[rows], key, value, sight, hidden)
        start = end


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
    batch = block_table.shape[0]
    new = query.shape[0] // max(batch, 1)
    sight = Sight(softmax_scale, True, alibi_slopes, window_left, -1, soft_cap)
    pages = Pages(block_table, wide(query), kv_scales, kv_zeros, quant_bits)
    for sequence, length in enumerate(kv_lengths.tolist()):
        rows = slice(sequence * new, (sequence + 1) * new)
        key, value = pages.read(key_cache, sequence, length, 0), pages.read(value_cache, sequence, length, 1)
        attn_output[rows] = attend(query[rows], key, value, sight)


class Pages:
    """Reads the keys or values of one sequence out of a paged cache."""

    def __init__(
        self,
        block_table: Tensor,
        kind: torch.dtype,
        scales: Tensor | None = None,
        zeros: Tensor | None = None,
        bits: int = 0,
    ) -> None:
        self._table = block_table
        self._kind = kind
        self._scales = scales
        self._zeros = zeros
        self._bits = bits

    def read(self, cache: Tensor, sequence: int, length: int, side: int = 0) -> Tensor:
        """[length, kv_heads, size] in `kind`; `side` is 0 for keys and 1 for values."""
        blocks = -(-length // cache.shape[1])
        chosen = self._table[sequence, :blocks].to(cache.device, torch.int64)
        rows = cache[chosen].flatten(0, 1)[:length]
        if not self._bits or self._scales is None:
            return rows.to(self._kind)
        zero = None if self._zeros is None else self._zeros[side]
        return restored(rows, self._scales[side], zero, self._bits, self._kind)
