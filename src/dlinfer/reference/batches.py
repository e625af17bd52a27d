"""Attention over batches of equal lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.reference.scores import Sight, attend


def incre_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, input_layout: str, softmax_scale: float
) -> Tensor:
    """`incre_flash_attention` of the interface."""
    if input_layout == "BSH":
        size = query.shape[-1] // num_heads
        kv_heads = key.shape[-1] // size
        heads = (num_heads, kv_heads, kv_heads)
        query, key, value = (
            t.unflatten(-1, (h, -1)) for t, h in zip((query, key, value), heads, strict=True)
        )
    elif input_layout == "BNSD":
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    sight = Sight(softmax_scale, causal=False)
    rows = [attend(query[i], key[i], value[i], sight) for i in range(query.shape[0])]
    result = torch.stack(rows) if rows else query.new_empty([*query.shape[:-1], value.shape[-1]])
    if input_layout == "BSH":
        return result.flatten(-2)
    return result.transpose(1, 2).contiguous() if input_layout == "BNSD" else result


def fused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """`fused_attention` of the interface."""
    sight = Sight(query.shape[-1] ** -0.5, causal=mask is None)
    result = query.new_empty([*query.shape[:-1], value.shape[-1]])
    for i in range(query.shape[0]):
        hidden = None if mask is None else mask[i if mask.shape[0] > 1 else 0]
        result[i] = attend(query[i], key[i], value[i], sight, hidden)
    return result
