"""Plain PyTorch for every operator, on any device that torch has: what is right, and what runs where no kernel is.

Functions take the arguments of the operator's schema. They compute in float32 (in float64 if the input is that) and round
once at the end, except where a declaration says that something in between is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dlinfer.reference import (
    activation,
    attention,
    batches,
    cache,
    linear,
    moe,
    norms,
    quantised,
    rotary,
    sparse,
)

__all__ = ["KERNELS"]

KERNELS: Mapping[str, Callable[..., Any]] = {
    "rms_norm": norms.rms_norm,
    "add_rms_norm": norms.add_rms_norm,
    "rms_norm_w8a8": norms.rms_norm_w8a8,
    "add_rms_norm_w8a8": norms.add_rms_norm_w8a8,
    "silu_and_mul": activation.silu_and_mul,
    "apply_rotary_pos_emb": rotary.apply_rotary_pos_emb,
    "apply_rotary_pos_emb_interleaved": rotary.apply_rotary_pos_emb_interleaved,
    "fill_kv_cache": cache.fill_kv_cache,
    "fill_contiguous_kvcache": cache.fill_contiguous_kvcache,
    "get_cache_len": cache.get_cache_len,
    "prefill_attention": attention.prefill_attention,
    "paged_prefill_attention": attention.paged_prefill_attention,
    "paged_decode_attention": attention.paged_decode_attention,
    "incre_flash_attention": batches.incre_flash_attention,
    "fused_attention": batches.fused_attention,
    "lightning_indexer": sparse.lightning_indexer,
    "sparse_flash_attention": sparse.sparse_flash_attention,
    "linear": linear.linear,
    "transdata": linear.transdata,
    "dynamic_quant": quantised.dynamic_quant,
    "linear_w8a8": quantised.linear_w8a8,
    "linear_w8a8_static": quantised.linear_w8a8_static,
    "weight_quant_matmul": quantised.weight_quant_matmul,
    "moe_gating_topk_softmax": moe.moe_gating_topk_softmax,
    "fused_moe": moe.fused_moe,
    "fused_moe_w8a8": moe.fused_moe_w8a8,
}
