"""Attention, one sequence after the other: over fresh keys, over paged caches, over batches of equal lengths."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from dlinfer.interface.checks import upcast_dtype
from dlinfer.interface.declaration import CacheQuantisation, MaskParameters
from dlinfer.interface.kernels import reference
from dlinfer.reference.quantisation import restored

_UNQUANTISED = CacheQuantisation()

# ---- one sequence: what every operator of attention comes down to ----


def attend(
    query: Tensor, key: Tensor, value: Tensor, parameters: MaskParameters, mask: Tensor | None = None
) -> Tensor:
    """[new, heads, size] over [length, kv_heads, size] and [length, kv_heads, value_size]; the last query is at the last key.

    `mask` is [new, at least length]: true hides, numbers are added.
    """
    upcast = upcast_dtype(query)
    new, heads, _ = query.shape
    length, kv_heads, size_v = value.shape
    if not length or not new:
        return query.new_zeros([new, heads, size_v])
    # Heads that share keys lie behind each other: [kv_heads, group, new, size] times [kv_heads, 1, size, length].
    grouped = query.to(upcast).reshape(new, kv_heads, heads // kv_heads, -1).permute(1, 2, 0, 3)
    scores = grouped @ key.to(upcast).permute(1, 2, 0).unsqueeze(1) * parameters.softmax_scale
    if parameters.soft_cap:
        scores = torch.tanh(scores / parameters.soft_cap) * parameters.soft_cap
    scores = _masked(scores, parameters, mask, length)
    # A query that sees nothing gets zeros; NaN of an input stays.
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(blind, 0), -1).masked_fill(blind, 0)
    # As kernels with matrix units do, and as the declarations say: weights have the dtype of the query.
    weights = weights.to(query.dtype).to(upcast)
    result = _weighted(weights, value.to(upcast).transpose(0, 1).unsqueeze(1), scores == -torch.inf)
    return result.permute(2, 0, 1, 3).reshape(new, heads, size_v).to(query.dtype)


def _weighted(weights: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """[kv_heads, group, new, length] times [kv_heads, 1, length, size]. A hidden key has no part in it, whatever its value is."""
    finite = values.isfinite()
    if bool(finite.all()):
        return weights @ values
    result = weights @ values.where(finite, 0)
    for key in (~finite).any(-1).any(0).flatten().nonzero().flatten().tolist():
        column = slice(key, key + 1)
        part = weights[..., column] * values.masked_fill(finite, 0)[:, :, column]
        result = result + part.masked_fill(hidden[..., column], 0)
    return result


def _masked(scores: Tensor, parameters: MaskParameters, mask: Tensor | None, length: int) -> Tensor:
    """Scores with biases added and hidden keys at minus infinity."""
    kv_heads, group, new, _ = scores.shape
    keys = torch.arange(length, device=scores.device)
    distance = keys - (length - new + torch.arange(new, device=scores.device)).unsqueeze(1)
    if parameters.alibi_slopes is not None:
        slopes = parameters.alibi_slopes.to(scores.dtype).reshape(kv_heads, group, 1, 1)
        scores = scores - slopes * distance.abs().to(scores.dtype)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if parameters.causal:
        hidden = hidden | (distance > 0)
    if parameters.window_left >= 0:
        hidden = hidden | (distance < -parameters.window_left)
    if parameters.window_right >= 0:
        hidden = hidden | (distance > parameters.window_right)
    if mask is not None:
        mask = mask[:, :length]
        if mask.dtype == torch.bool:
            hidden = hidden | mask
        else:
            scores = scores + mask.to(scores.dtype)
    return scores.masked_fill(hidden, -torch.inf)


# ---- fresh keys and paged caches ----


def token_slices(cu_seqlens_q: Tensor) -> list[slice]:
    """The tokens of each sequence."""
    return [slice(start, end) for start, end in pairwise(cu_seqlens_q.tolist())]


@reference("prefill_attention")
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
    first = 0
    for rows, length in zip(token_slices(cu_seqlens_q), kv_lengths.tolist(), strict=True):
        keys = slice(first, first + length)
        hidden = None if mask is None else mask[rows]
        attn_output[rows] = attend(query[rows], key[keys], value[keys], parameters, hidden)
        first += length


@reference("paged_prefill_attention")
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
    pages = Pages(block_table, upcast_dtype(query), quantisation)
    lengths = zip(token_slices(cu_seqlens_q), kv_lengths.tolist(), strict=True)
    for sequence, (rows, length) in enumerate(lengths):
        hidden = None if mask is None else mask[rows]
        key, value = pages.read(key_cache, sequence, length, 0), pages.read(value_cache, sequence, length, 1)
        attn_output[rows] = attend(query[rows], key, value, parameters, hidden)


@reference("paged_decode_attention")
def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    kv_lengths: Tensor,
    attn_output: Tensor,
    parameters: MaskParameters,
    quantisation: CacheQuantisation,
) -> None:
    sequences = block_table.shape[0]
    cu_seqlens_q = torch.arange(sequences + 1) * (query.shape[0] // max(sequences, 1))
    paged_prefill_attention(
        query, key_cache, value_cache, block_table, cu_seqlens_q, kv_lengths, attn_output, None, parameters, quantisation,
    )  # fmt: skip


class Pages:
    """Reads the keys or values of one sequence out of a paged cache."""

    def __init__(
        self, block_table: Tensor, dtype: torch.dtype, quantisation: CacheQuantisation = _UNQUANTISED
    ) -> None:
        self._table, self._dtype, self._quantisation = block_table, dtype, quantisation

    def read(self, cache: Tensor, sequence: int, length: int, side: int = 0) -> Tensor:
        """[length, kv_heads, size] in `dtype`; `side` is 0 for keys and 1 for values."""
        blocks = -(-length // cache.shape[1])
        chosen = self._table[sequence, :blocks].to(cache.device, torch.int64)
        rows = cache[chosen].flatten(0, 1)[:length]
        scales, zeros, bits = self._quantisation
        if not bits or scales is None:
            return rows.to(self._dtype)
        return restored(rows, scales[side], None if zeros is None else zeros[side], bits, self._dtype)


# ---- batches of equal lengths ----


@reference("incre_flash_attention")
def incre_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, input_layout: str, softmax_scale: float
) -> Tensor:
    if input_layout == "BSH":
        size = query.shape[-1] // num_heads
        kv_heads = key.shape[-1] // size
        heads = (num_heads, kv_heads, kv_heads)
        query, key, value = (
            t.unflatten(-1, (h, -1)) for t, h in zip((query, key, value), heads, strict=True)
        )
    elif input_layout == "BNSD":
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    parameters = MaskParameters(softmax_scale, causal=False)
    rows = [attend(query[i], key[i], value[i], parameters) for i in range(query.shape[0])]
    result = torch.stack(rows) if rows else query.new_empty([*query.shape[:-1], value.shape[-1]])
    if input_layout == "BSH":
        return result.flatten(-2)
    return result.transpose(1, 2).contiguous() if input_layout == "BNSD" else result


@reference("fused_attention")
def fused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    parameters = MaskParameters(query.shape[-1] ** -0.5, causal=mask is None)
    result = query.new_empty([*query.shape[:-1], value.shape[-1]])
    for i in range(query.shape[0]):
        hidden = None if mask is None else mask[i if mask.shape[0] > 1 else 0]
        result[i] = attend(query[i], key[i], value[i], parameters, hidden)
    return result
