"""What the vendor serves."""

from __future__ import annotations

from collections.abc import Mapping

from dlinfer.interface.declaration import Kernel
from dlinfer.vendors.triton import (
    activation,
    attention,
    batches,
    cache,
    moe,
    norms,
    quantised,
    rotary,
    weights,
)
from dlinfer.vendors.triton.language import prepared

_SERVED: Mapping[str, Kernel] = {
    "rms_norm": norms.rms_norm,
    "add_rms_norm": norms.add_rms_norm,
    "rms_norm_w8a8": norms.rms_norm_w8a8,
    "add_rms_norm_w8a8": norms.add_rms_norm_w8a8,
    "silu_and_mul": activation.silu_and_mul,
    "apply_rotary_pos_emb": rotary.apply_rotary_pos_emb,
    "apply_rotary_pos_emb_interleaved": rotary.apply_rotary_pos_emb_interleaved,
    "fill_kv_cache": cache.fill_kv_cache,
    "prefill_attention": attention.prefill_attention,
    "paged_prefill_attention": attention.paged_prefill_attention,
    "paged_decode_attention": attention.paged_decode_attention,
    "incre_flash_attention": batches.incre_flash_attention,
    "fused_attention": batches.fused_attention,
    "dynamic_quant": quantised.dynamic_quant,
    "linear_w8a8": quantised.linear_w8a8,
    "linear_w8a8_static": quantised.linear_w8a8_static,
    "weight_quant_matmul": weights.weight_quant_matmul,
    "fused_moe": moe.fused_moe,
    "fused_moe_w8a8": moe.fused_moe_w8a8,
}

KERNELS: Mapping[str, Kernel] = {name: prepared(name, kernel) for name, kernel in _SERVED.items()}
