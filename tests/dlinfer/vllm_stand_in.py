"""vLLM's plug-in interface as far as dlinfer uses it, for tests on machines without vLLM.

Names and parameters are those of vLLM 0.32.0. `test_vllm_interface` compares them with vLLM's own sources where those are
installed. Bodies are as small as the tests allow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

VERSION = "0.32.0"
M = TypeVar("M")
op_registry_oot: dict[str, type] = {}


# ---- platforms and attention ----


class PlatformEnum(Enum):
    OOT = 6


class Platform:
    device_name: str
    device_type: str
    dispatch_key: str = "CPU"

    @classmethod
    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
        raise NotImplementedError

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config):
        raise NotImplementedError

    @classmethod
    def check_and_update_config(cls, vllm_config):
        raise NotImplementedError

    @classmethod
    def get_device_name(cls, device_id=0):
        raise NotImplementedError

    @classmethod
    def get_device_total_memory(cls, device_id=0):
        raise NotImplementedError

    @classmethod
    def set_device(cls, device):
        raise NotImplementedError

    @classmethod
    def manual_seed_all(cls, seed):
        raise NotImplementedError

    @classmethod
    def register_triton_kernel_overrides(cls):
        raise NotImplementedError

    @classmethod
    def import_kernels(cls):
        raise NotImplementedError


class AttentionType(StrEnum):
    DECODER = "decoder"
    ENCODER_ONLY = "encoder_only"


class KVCacheLayout(Enum):
    LBHNC = 0
    LBNHC = 1
    BLHNC = 2
    BLNHC = 3


class AttentionBackend:
    supported_dtypes: ClassVar[list[torch.dtype]]

    @classmethod
    def validate_configuration(
        cls,
        head_size,
        dtype,
        kv_cache_dtype,
        block_size,
        use_mla,
        has_sink,
        use_sparse,
        use_mm_prefix,
        use_per_head_quant_scales,
        device_capability,
        attn_type,
        has_sliding_window=False,
        use_non_causal=False,
        use_batch_invariant=False,
        use_kv_connector=False,
        use_pcp=False,
        use_adaptive_verification=False,
        use_dcp=False,
        use_rswa=False,
    ):
        return ["MLA not supported"] if use_mla else []

    @classmethod
    def supported_kv_cache_layouts(cls):
        raise NotImplementedError

    @classmethod
    def supports_sliding_window(cls):
        raise NotImplementedError

    @classmethod
    def supports_non_causal(cls):
        raise NotImplementedError

    @staticmethod
    def get_name():
        raise NotImplementedError

    @staticmethod
    def get_impl_cls():
        raise NotImplementedError

    @staticmethod
    def get_builder_cls():
        raise NotImplementedError


class AttentionMetadata:
    pass


@dataclass
class CommonAttentionMetadata:
    query_start_loc: Tensor
    query_start_loc_cpu: Tensor
    seq_lens: Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Tensor
    slot_mapping: Tensor
    causal: bool | Tensor = True


class AttentionMetadataBuilder(Generic[M]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.device = device

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        raise NotImplementedError


class AttentionImpl(Generic[M]):
    def __init__(
        self,
        num_heads,
        head_size,
        scale,
        num_kv_heads=None,
        alibi_slopes=None,
        sliding_window=None,
        kv_cache_dtype="auto",
        logits_soft_cap=None,
        attn_type=AttentionType.DECODER,
        kv_sharing_target_layer_name=None,
    ):
        raise NotImplementedError

    def forward(
        self,
        layer,
        query,
        key,
        value,
        kv_cache,
        attn_metadata,
        output,
        output_scale=None,
        output_block_scale=None,
    ):
        raise NotImplementedError


# ---- layers ----


class CustomOp(torch.nn.Module):
    @classmethod
    def register_oot(cls, _decorated_op_cls=None, name=None):
        reg_name = name if name is not None else cls.__name__
        assert reg_name not in op_registry_oot, f"registered twice: {reg_name}"
        op_registry_oot[reg_name] = _decorated_op_cls
        return _decorated_op_cls

    def forward_native(self, *args, **kwargs):
        return "native"


class RMSNorm(CustomOp):
    def __init__(self, hidden_size, eps=1e-6, var_hidden_size=None, has_weight=True, dtype=None):
        super().__init__()
        self.variance_epsilon = eps
        self.variance_size_override = None if var_hidden_size == hidden_size else var_hidden_size
        self.has_weight = has_weight
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=dtype))


class SiluAndMul(CustomOp):
    pass


class RotaryEmbedding(CustomOp):
    def __init__(
        self, head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype, init_cache=True
    ):
        super().__init__()
        self.head_size, self.rotary_dim, self.is_neox_style = head_size, rotary_dim, is_neox_style
        angles = torch.outer(
            torch.arange(max_position_embeddings).float(),
            base ** -(torch.arange(0, rotary_dim, 2) / rotary_dim),
        )
        self.register_buffer(
            "cos_sin_cache", torch.cat((angles.cos(), angles.sin()), -1).to(dtype), persistent=False
        )

    def _match_cos_sin_cache_dtype(self, query):
        return self.cos_sin_cache

    def forward_native(self, positions, query, key=None):
        return "native"


class LinearBase(CustomOp):
    def __init__(self, method):
        super().__init__()
        self.quant_method = method


class UnquantizedLinearMethod:
    def apply(self, layer, x, bias=None):
        raise NotImplementedError


class UnquantizedEmbeddingMethod:
    def apply(self, layer, x, bias=None):
        raise NotImplementedError


class UnquantizedFusedMoEMethod(CustomOp):
    def __init__(self, moe):
        super().__init__()
        self.moe = moe

    def create_weights(
        self,
        layer,
        num_experts,
        hidden_size,
        intermediate_size_per_partition,
        params_dtype,
        **extra_weight_attrs,
    ):
        layer.created = True

    def apply_monolithic(self, layer, x, router_logits, input_ids=None):
        raise NotImplementedError


# ---- as modules ----


_ATTENTION = (AttentionBackend, AttentionImpl, AttentionMetadata, AttentionMetadataBuilder, AttentionType)
_LINEAR = (
    "ReplicatedLinear",
    "ColumnParallelLinear",
    "MergedColumnParallelLinear",
    "QKVParallelLinear",
    "RowParallelLinear",
)
_ROTARY = {
    "dynamic_ntk_scaling_rope": "DynamicNTKScalingRotaryEmbedding",
    "linear_scaling_rope": "LinearScalingRotaryEmbedding",
    "llama3_rope": "Llama3RotaryEmbedding",
    "yarn_scaling_rope": "YaRNScalingRotaryEmbedding",
}
REGISTERED: dict[str, Callable[..., Any]] = {}
"""What `register_kernels` was given."""


def _contents() -> dict[str, dict[str, Any]]:
    layers = "vllm.model_executor.layers"
    found: dict[str, dict[str, Any]] = {
        "vllm.platforms.interface": {"Platform": Platform, "PlatformEnum": PlatformEnum},
        "vllm.v1.attention.backend": {kind.__name__: kind for kind in (*_ATTENTION, CommonAttentionMetadata)},
        "vllm.v1.kv_cache_layout": {"KVCacheLayout": KVCacheLayout},
        "vllm.triton_utils": {"HAS_TRITON": False},
        "vllm.triton_utils.dispatcher": {"register_kernels": REGISTERED.update},
        "vllm.config": {
            "CompilationMode": SimpleNamespace(NONE="no compilation"),
            "CUDAGraphMode": SimpleNamespace(NONE="no graphs"),
        },
        "vllm.model_executor.custom_op": {"op_registry_oot": op_registry_oot, "CustomOp": CustomOp},
        f"{layers}.activation": {"SiluAndMul": SiluAndMul},
        f"{layers}.layernorm": {"RMSNorm": RMSNorm},
        f"{layers}.fused_moe.unquantized_fused_moe_method": {
            "UnquantizedFusedMoEMethod": UnquantizedFusedMoEMethod
        },
        f"{layers}.rotary_embedding.base": {"RotaryEmbedding": RotaryEmbedding},
        f"{layers}.linear": {"UnquantizedLinearMethod": UnquantizedLinearMethod}
        | {name: type(name, (LinearBase,), {}) for name in _LINEAR},
        f"{layers}.vocab_parallel_embedding": {"UnquantizedEmbeddingMethod": UnquantizedEmbeddingMethod}
        | {name: type(name, (LinearBase,), {}) for name in ("VocabParallelEmbedding", "ParallelLMHead")},
    }
    for module, name in _ROTARY.items():
        found[f"{layers}.rotary_embedding.{module}"] = {name: type(name, (RotaryEmbedding,), {})}
    return found


@contextmanager
def installed() -> Iterator[None]:
    """vLLM can be imported while this lasts; whatever was imported meanwhile is forgotten afterwards."""
    before = dict(sys.modules)
    for name, contents in _contents().items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        vars(sys.modules[name]).update(contents)
    try:
        yield
    finally:
        op_registry_oot.clear()
        REGISTERED.clear()
        for name in set(sys.modules) - set(before):
            if name.partition(".")[0] == "vllm" or name.startswith("dlinfer.framework.vllm_ext"):
                del sys.modules[name]
