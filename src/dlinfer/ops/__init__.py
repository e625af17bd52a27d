"""The operators as functions: what serving frameworks call.

Both generations of LMDeploy's calls are understood (0.16: `q_start_loc`, `q_seq_len`, ...; 0.18: cumulative lengths on the
CPU), told apart by which arguments are given. Each function brings its arguments into the form of the interface and calls
`torch.ops.dlinfer.<name>`, so it can be traced into a graph. `docs/dlinfer-operators.md` has the interface.
"""

from __future__ import annotations

from dlinfer.errors import DlinferArgumentError
from dlinfer.ops.attention import (
    fused_attention,
    incre_flash_attention,
    paged_decode_attention,
    paged_prefill_attention,
    prefill_attention,
)
from dlinfer.ops.cache import fill_contiguous_kvcache, fill_kv_cache, get_cache_len, set_cache_layout
from dlinfer.ops.layers import (
    add_rms_norm,
    add_rms_norm_w8a8,
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_interleaved,
    rms_norm,
    rms_norm_w8a8,
    silu_and_mul,
    transdata,
)
from dlinfer.ops.matmul import dynamic_quant, linear, linear_w8a8, linear_w8a8_static, weight_quant_matmul
from dlinfer.ops.moe import fused_moe, fused_moe_w8a8, moe_gating_topk_softmax
from dlinfer.ops.sparse import lightning_indexer, sparse_flash_attention

__all__ = [
    "DlinferArgumentError",
    "add_rms_norm",
    "add_rms_norm_w8a8",
    "apply_rotary_pos_emb",
    "apply_rotary_pos_emb_interleaved",
    "dynamic_quant",
    "fill_contiguous_kvcache",
    "fill_kv_cache",
    "fused_attention",
    "fused_moe",
    "fused_moe_w8a8",
    "get_cache_len",
    "incre_flash_attention",
    "lightning_indexer",
    "linear",
    "linear_w8a8",
    "linear_w8a8_static",
    "moe_gating_topk_softmax",
    "paged_decode_attention",
    "paged_prefill_attention",
    "prefill_attention",
    "rms_norm",
    "rms_norm_w8a8",
    "set_cache_layout",
    "silu_and_mul",
    "sparse_flash_attention",
    "transdata",
    "weight_quant_matmul",
]
