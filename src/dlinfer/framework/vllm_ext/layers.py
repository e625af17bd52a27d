"""vLLM's layers with dlinfer's operators: norms, activations, rotary embedding, linear layers and experts.

vLLM looks the name of a layer's class up in a registry when a model makes one, and makes the registered class instead.
Whatever a layer does beyond an operator goes to vLLM's own code, `forward_native`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.custom_op import op_registry_oot  # type: ignore[import-not-found]
from vllm.model_executor.layers.activation import SiluAndMul  # type: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (  # type: ignore[import-not-found]
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.layers.layernorm import RMSNorm  # type: ignore[import-not-found]
from vllm.model_executor.layers.linear import (  # type: ignore[import-not-found]
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding  # type: ignore[import-not-found]
from vllm.model_executor.layers.rotary_embedding.dynamic_ntk_scaling_rope import (  # type: ignore[import-not-found]
    DynamicNTKScalingRotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.linear_scaling_rope import (  # type: ignore[import-not-found]
    LinearScalingRotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.llama3_rope import (  # type: ignore[import-not-found]
    Llama3RotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import (  # type: ignore[import-not-found]
    YaRNScalingRotaryEmbedding,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (  # type: ignore[import-not-found]
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from dlinfer import ops


class DlinferRMSNorm(RMSNorm):
    """`rms_norm`, and `add_rms_norm` where a residual is given."""

    def forward_oot(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if not self.has_weight or self.variance_size_override is not None:
            return self.forward_native(x, residual)
        if residual is None:
            return ops.rms_norm(x, self.weight.data, self.variance_epsilon)
        return ops.add_rms_norm(x, residual, self.weight.data, self.variance_epsilon)


class DlinferSiluAndMul(SiluAndMul):
    """`silu_and_mul`."""

    def forward_oot(self, x: Tensor) -> Tensor:
        return ops.silu_and_mul(x)


class RotaryMixin:
    """`apply_rotary_pos_emb` for halves, `apply_rotary_pos_emb_interleaved` for pairs. In front of a rotary layer of vLLM."""

    _tables: tuple[Tensor, Tensor, Tensor] | None = None

    def forward_oot(
        self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        if key is None or not (self.is_neox_style or self.rotary_dim == self.head_size):
            return self.forward_native(positions, query, key)
        indices = positions.flatten()
        tokens = indices.shape[0]
        cos, sin = (table.index_select(0, indices) for table in self._whole(query))
        states = [part.view(tokens, -1, self.head_size) for part in (query, key)]
        if self.is_neox_style:
            new_query, new_key = ops.apply_rotary_pos_emb(*states, cos, sin)
        else:
            new_query, new_key = (
                ops.apply_rotary_pos_emb_interleaved(part, cos, sin, False) for part in states
            )
        return new_query.view(query.shape), new_key.view(key.shape)

    def _whole(self: Any, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions, each angle twice; vLLM keeps them once, in one table."""
        cache = self._match_cos_sin_cache_dtype(like)
        if self._tables is None or self._tables[0] is not cache:
            cos, sin = cache.chunk(2, dim=-1)
            self._tables = (cache, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
        return self._tables[1:]


class DlinferLinearMethod(UnquantizedLinearMethod):
    """`linear` for weights as they are."""

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return ops.linear(x, layer.weight, bias)


class DlinferEmbeddingMethod(UnquantizedEmbeddingMethod):
    """`linear` for the logits; looking tokens up stays vLLM's."""

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return ops.linear(x, layer.weight, bias)


class LinearMixin:
    """In front of a linear layer of vLLM: plain weights are multiplied by dlinfer, quantised ones by vLLM's method."""

    quant_method: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        found = type(self.quant_method)
        if found is UnquantizedLinearMethod:
            self.quant_method = DlinferLinearMethod()
        elif found is UnquantizedEmbeddingMethod:
            self.quant_method = DlinferEmbeddingMethod()


class DlinferFusedMoEMethod(UnquantizedFusedMoEMethod):
    """`moe_gating_topk_softmax` and `fused_moe`: choosing a token's experts, and the experts."""

    # vLLM's routers are compiled kernels, so routing is part of the method.
    is_monolithic = True

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        """vLLM's weights, for experts that the operators can do; ValueError for others."""
        activation = str(getattr(layer.activation, "value", layer.activation))
        for what, present in (
            (f"the activation {activation!r} of experts", activation != "silu"),
            (f"{layer.scoring_func!r} as the score of experts", layer.scoring_func != "softmax"),
            ("choosing experts in groups", layer.use_grouped_topk),
            ("a correction of the scores of experts", layer.e_score_correction_bias is not None),
            ("a routing function of the model's own", layer.custom_routing_function is not None),
            ("limits of the activation of experts", layer.swiglu_limit is not None),
            ("a factor of the routed sum", layer.routed_scaling_factor != 1.0),
            ("router weights on the input", layer.apply_router_weight_on_input),
            ("a bias of experts", self.moe.has_bias),
            ("experts on several ranks", self.moe.moe_parallel_config.use_ep),
        ):
            if present:
                raise ValueError(
                    f"{what}: dlinfer's experts under vLLM cannot do that; use a platform of vLLM's own"
                )
        super().create_weights(layer, *args, **kwargs)

    def apply_monolithic(
        self, layer: Any, x: Tensor, router_logits: Tensor, input_ids: Tensor | None = None
    ) -> Tensor:
        """The weighted sum of each token's experts."""
        weights, experts = ops.moe_gating_topk_softmax(
            router_logits, layer.top_k, renormalize=layer.renormalize
        )
        return ops.fused_moe(
            x, layer.w13_weight, layer.w2_weight, weights, experts, layer.top_k, renormalize=False
        )


_ROTARY = (
    RotaryEmbedding,
    Llama3RotaryEmbedding,
    LinearScalingRotaryEmbedding,
    DynamicNTKScalingRotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)
_LINEAR = (
    ReplicatedLinear,
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    ParallelLMHead,
)


def _in_front(mixin: type, base: type) -> type:
    return type(f"Dlinfer{base.__name__}", (mixin, base), {"__module__": __name__})


LAYERS: dict[type, type] = {
    RMSNorm: DlinferRMSNorm,
    SiluAndMul: DlinferSiluAndMul,
    UnquantizedFusedMoEMethod: DlinferFusedMoEMethod,
    **{base: _in_front(RotaryMixin, base) for base in _ROTARY},
    **{base: _in_front(LinearMixin, base) for base in _LINEAR},
}
"""For each layer of vLLM the one that replaces it."""


def register_layers() -> None:
    """Tells vLLM, once in a process."""
    for base, ours in LAYERS.items():
        if op_registry_oot.get(base.__name__) is not ours:
            base.register_oot(ours)  # type: ignore[attr-defined]
