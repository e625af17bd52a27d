"""Attention over batches of equal lengths: sequences of a prefill, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.vendors.triton.attention import prefill_attention


def _attended(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, mask: Tensor | None = None
) -> Tensor:
    """[batch, new, heads, size] over [batch, length, kv_heads, size]."""
    batch, new, heads, _ = query.shape
    length, size_v = key.shape[1], value.shape[3]
    out = query.new_empty([batch, new, heads, size_v])
    ends = torch.arange(1, batch + 1, dtype=torch.int32, device=query.device) * new
    lengths = torch.full((batch,), length, dtype=torch.int32, device=query.device)
    if mask is not None:
        mask = mask.expand(batch, new, length).reshape(batch * new, length)
    prefill_attention(
        query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), ends, lengths, new, out.flatten(0, 1), scale, causal,
        mask,
    )  # fmt: skip
    return out


def fused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """`fused_attention` of the interface."""
    return _attended(query, key, value, query.shape[-1] ** -0.5, mask is None, mask)


def incre_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, input_layout: str, softmax_scale: float
) -> Tensor:
    """`incre_flash_attention` of the interface."""
    if input_layout == "BNSD":
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        return _attended(query, key, value, softmax_scale, False).transpose(1, 2).contiguous()
    if input_layout == "BSND":
        return _attended(query, key, value, softmax_scale, False)
    query = query.unflatten(-1, (num_heads, -1))
    kv_heads = key.shape[-1] // query.shape[-1]
    key, value = key.unflatten(-1, (kv_heads, -1)), value.unflatten(-1, (kv_heads, -1))
    return _attended(query, key, value, softmax_scale, False).flatten(-2)
