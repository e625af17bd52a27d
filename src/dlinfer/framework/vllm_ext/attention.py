"""Attention over vLLM's paged caches by dlinfer's operators.

vLLM hands a layer one cache [blocks, kv_heads, block_size, 2 * size] with a key and its value beside each other. As views
of that memory the two are caches of the interface, [blocks, block_size, kv_heads, size]: nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import (  # type: ignore[import-not-found]
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
)
from vllm.v1.kv_cache_layout import KVCacheLayout  # type: ignore[import-not-found]

from dlinfer.interface.registry import OVERLOADS

_fill = OVERLOADS["fill_kv_cache"]
_prefill = OVERLOADS["paged_prefill_attention"]
_decode = OVERLOADS["paged_decode_attention"]


class DlinferAttentionBackend(AttentionBackend):
    """What vLLM asks about this attention. Whatever is not said here, it does not do."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        """The one name that vLLM's list of backends has for those from outside."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[DlinferAttention]:
        return DlinferAttention

    @staticmethod
    def get_builder_cls() -> type[DlinferMetadataBuilder]:
        return DlinferMetadataBuilder

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        """Any; best are the heads of one token beside each other, as kernels read them."""
        return (KVCacheLayout.LBNHC, KVCacheLayout.LBHNC, KVCacheLayout.BLNHC, KVCacheLayout.BLHNC)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True


@dataclass
class DlinferMetadata(AttentionMetadata):
    """One step of the engine as the operators take it; the same for all layers."""

    tokens: int
    """Without padding."""
    decoding: bool
    """Every sequence has one new token."""
    block_table: Tensor
    cu_seqlens_q: Tensor
    kv_lengths: Tensor
    max_q_len: int
    max_kv_len: int
    causal: bool


class DlinferMetadataBuilder(AttentionMetadataBuilder[DlinferMetadata]):
    """Makes the metadata of a step from vLLM's."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> DlinferMetadata:
        """Lengths stay where they are cheapest to read: cumulative query lengths on the CPU."""
        common = common_attn_metadata
        if not isinstance(common.causal, bool):
            raise ValueError(
                "sequences of one batch are causal in part, expected all or none: dlinfer takes one flag"
            )
        return DlinferMetadata(
            tokens=common.num_actual_tokens,
            decoding=common.causal
            and common.max_query_len == 1
            and common.num_actual_tokens == common.num_reqs,
            block_table=common.block_table_tensor,
            cu_seqlens_q=common.query_start_loc_cpu,
            kv_lengths=common.seq_lens,
            max_q_len=common.max_query_len,
            max_kv_len=common.max_seq_len,
            causal=common.causal,
        )


class DlinferAttention(AttentionImpl[DlinferMetadata]):
    """The attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        if attn_type != AttentionType.DECODER:
            raise ValueError(
                f"attention of type {attn_type!r} is not there, expected {AttentionType.DECODER.value!r}"
            )
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        # vLLM counts the keys of a window, the query's own too; the interface the positions before it.
        self.window_left = -1 if sliding_window is None else sliding_window - 1
        self.soft_cap = float(logits_soft_cap or 0.0)

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Writes the new keys and values to their slots; -1 leaves a token of padding out."""
        keys, values = self._caches(kv_cache)
        tokens = slot_mapping.shape[0]
        _fill(key[:tokens], keys, value[:tokens], values, slot_mapping)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: DlinferMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Attention of the new tokens over the cache, which has their keys already; written to `output`."""
        if output_scale is not None or output_block_scale is not None:
            raise ValueError("output_scale is given, expected None: results are not quantised")
        step = attn_metadata
        if step is None:
            # vLLM measures memory before there is a cache.
            return output.zero_()
        keys, values = self._caches(kv_cache)
        result = output.view(-1, self.num_heads, self.head_size)[: step.tokens]
        if step.decoding:
            _decode(
                query[: step.tokens], keys, values, step.block_table, step.kv_lengths, step.max_kv_len, result,
                self.scale, self.alibi_slopes, self.window_left, self.soft_cap,
            )  # fmt: skip
        else:
            _prefill(
                query[: step.tokens], keys, values, step.block_table, step.cu_seqlens_q, step.kv_lengths, step.max_q_len,
                step.max_kv_len, result, self.scale, step.causal, None, self.alibi_slopes, self.window_left, -1,
                self.soft_cap,
            )  # fmt: skip
        return output

    def _caches(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values as caches of the interface."""
        pages = kv_cache.transpose(1, 2)
        return pages[..., : self.head_size], pages[..., self.head_size :]
