"""Sliding windows, soft caps and slopes of alibi reach dlinfer's attention.

LMDeploy 0.18 gives them to its layer of attention, which drops them on the way to dlinfer: Mistral beyond its window, Gemma 2
and models with alibi would answer something else without an error. Layers that have none of these stay LMDeploy's own.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from dlinfer import ops

__all__ = ["install"]


@functools.cache
def install() -> None:
    """Once in a process."""
    from lmdeploy.pytorch.backends.dlinfer.attention import DlinferAttentionImpl

    original = DlinferAttentionImpl.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _window(self) is not None or self.logit_softcapping or self.alibi:
            self.paged_attention_fwd = functools.partial(_attention, self)

    DlinferAttentionImpl.__init__ = init


def _window(layer: Any) -> int | tuple[int, int] | None:
    """The layer's window; LMDeploy writes -1 where there is none."""
    window: int | tuple[int, int] | None = layer.sliding_window
    if window is None or window in (-1, (-1, -1)):
        return None
    return window


def _attention(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_output: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_offsets: Tensor,
    *,
    is_decoding: bool,
    is_prefill_no_cache: bool | None,
    q_seqlens: Tensor,
    kv_seqlens: Tensor,
    cu_seqlens_q_cpu: Tensor,
    kv_seqlens_cpu: Tensor,
    max_q_seq_len: int,
    max_kv_seq_len: int,
    block_size: int,
    attn_mask: Any,
    softmax_scale: float | None,
    kv_scales: Tensor | None,
    kv_zeros: Tensor | None,
    quant_bits: int | None,
    **unused: Any,
) -> Tensor:
    """What LMDeploy's own function does, with the layer's extras. It calls this with the same arguments."""
    heads = (layer.num_heads, layer.num_kv_heads)
    extras: dict[str, Any] = {
        "softmax_scale": softmax_scale,
        "alibi_slopes": layer.alibi_slopes,
        "attn_output": attn_output,
        "window_size": _window(layer),
        "logit_softcapping": layer.logit_softcapping or None,
    }
    ends = cu_seqlens_q_cpu[1:]
    if not is_decoding and is_prefill_no_cache:
        return ops.prefill_attention(
            query, key, value, key_cache, value_cache, q_seqlens, kv_seqlens, max_q_seq_len, *heads, attn_mask,
            actual_seq_lengths_cpu=ends, **extras,
        )  # fmt: skip
    extras |= {
        "head_size_v": layer.v_head_size, "kv_scales": kv_scales, "kv_zeros": kv_zeros, "quant_bits": quant_bits or 0,
    }  # fmt: skip
    if is_decoding:
        return ops.paged_decode_attention(
            query,
            key_cache,
            value_cache,
            block_offsets,
            block_size,
            ends,
            kv_seqlens_cpu,
            max_kv_seq_len,
            *heads,
            **extras,
        )
    return ops.paged_prefill_attention(
        query, key, value, key_cache, value_cache, block_offsets, block_size, ends, kv_seqlens_cpu,
        max_q_seq_len, max_kv_seq_len, *heads, attn_mask, **extras,
    )  # fmt: skip
