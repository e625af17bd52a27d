"""What LMDeploy 0.18 gets wrong on the way to dlinfer's operators, put right from outside.

Each correction is a function of its own. tests/dlinfer/test_lmdeploy_models.py compares with transformers what it changes, and
test_lmdeploy_quantised.py does for padding.
A later LMDeploy that is right by itself makes it do nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import Any

import torch
from torch import Tensor

from dlinfer import ops
from dlinfer.framework.lmdeploy.devices import serves
from dlinfer.framework.lmdeploy.replacing import around


@functools.cache
def install() -> None:
    """Apply all corrections; once in a process."""
    _serve_older_backends()  # others change what it installs
    _separate_engines()
    _keep_float32()
    _keep_keys_for_layers_without_window()
    _stretch_rotary_of_llama31()
    _keep_embedding_of_padding()
    _pass_mask_parameters()


def _keep_float32() -> None:
    """`dtype="auto"` serves a model in the dtype that its config.json names.

    LMDeploy makes float16 of float32, and its settings have no word for float32. On a CPU that is slower and less exact.
    """
    from lmdeploy.pytorch import config

    @around(config, "_update_torch_dtype")
    def update(original: Any, model_config: Any, dtype: str, device_type: str = "auto") -> Any:
        updated = original(model_config, dtype, device_type=device_type)
        if dtype == "auto" and serves(device_type) and _saved_dtype(model_config.hf_config) is torch.float32:
            updated.dtype = torch.float32
        return updated


def _saved_dtype(hf_config: Any) -> torch.dtype | None:
    """What config.json says, for the whole model or for its language model; nothing for AWQ, whose layers are float16."""
    if (getattr(hf_config, "quantization_config", None) or {}).get("quant_method") == "awq":
        return None
    for part in (hf_config, getattr(hf_config, "text_config", None), getattr(hf_config, "llm_config", None)):
        dtype = getattr(part, "dtype", None)
        if dtype is not None:
            return getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    return None


def _keep_keys_for_layers_without_window() -> None:
    """The engine gives blocks before the window back, for all layers; Gemma 2 has layers that still look there."""
    from lmdeploy.pytorch.config import ModelConfig

    @around(ModelConfig, "from_hf_config")
    def from_hf_config(original: Any, cls: Any, hf_config: Any, *args: Any, **kwargs: Any) -> Any:
        model_config = original(cls, hf_config, *args, **kwargs)
        kinds = getattr(model_config.llm_config, "layer_types", None) or ()
        if serves(kwargs.get("device_type", "auto")) and "full_attention" in kinds:
            model_config.sliding_window = -1
        return model_config


def _stretch_rotary_of_llama31() -> None:
    """Llama 3.1 stretches its rotary embedding from the original length; LMDeploy hands over the new length in its place."""
    from lmdeploy.pytorch.backends.dlinfer import rotary_embedding
    from lmdeploy.pytorch.backends.rotary_embedding import RopeType

    @around(rotary_embedding, "_build_rotary_embedding")
    def build(original: Any, spec: Any) -> Any:
        if spec.emb_type == RopeType.Llama3:
            length = spec.llama3_params.original_max_position_embeddings
            spec = dataclasses.replace(spec, max_position_embeddings=length)
        return original(spec)


def _keep_embedding_of_padding() -> None:
    """LMDeploy sets the embedding of `pad_token_id` to 0 when it loads a model of the Qwen or InternLM families.

    transformers keeps the row as it was saved. It may be the row of a token that prompts have, such as the one that ends an
    answer; where one matrix is at both ends of the vocabulary, the score of that token is then always 0.
    """
    from lmdeploy.pytorch.backends import get_backend
    from lmdeploy.pytorch.nn.embedding import ParallelEmbedding

    @around(ParallelEmbedding, "__init__")
    def init(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if serves(get_backend().get_name()):
            self.padding_idx = None


# ---- sliding windows, soft caps and slopes of alibi ----


def _pass_mask_parameters() -> None:
    """LMDeploy gives windows, soft caps and slopes to its layer of attention, which drops them on the way to dlinfer: Mistral
    beyond its window, Gemma 2 and models with alibi would answer something else without an error. Other layers stay its own.
    """
    from lmdeploy.pytorch.backends.dlinfer.attention import DlinferAttentionImpl

    @around(DlinferAttentionImpl, "__init__")
    def init(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _window(self) is not None or self.logit_softcapping or self.alibi:
            self.paged_attention_fwd = functools.partial(_attention, self)


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
            query, key_cache, value_cache, block_offsets, block_size, ends, kv_seqlens_cpu, max_kv_seq_len, *heads, **extras,
        )  # fmt: skip
    return ops.paged_prefill_attention(
        query, key, value, key_cache, value_cache, block_offsets, block_size, ends, kv_seqlens_cpu,
        max_q_seq_len, max_kv_seq_len, *heads, attn_mask, **extras,
    )  # fmt: skip


# ---- what LMDeploy keeps in the class of a backend and belongs to one engine; several may live in a process and take turns ----

# An engine runs its steps in a thread of its own.
_TURN = threading.Lock()
# On an engine's `cache_config`, which every step carries.
_GRAPH_MODE = "dlinfer_graph_mode"


def _separate_engines() -> None:
    """After the backends have their graph runners."""
    from lmdeploy.pytorch.backends.dlinfer.ascend import AscendOpsBackend
    from lmdeploy.pytorch.backends.dlinfer.camb import CambOpsBackend
    from lmdeploy.pytorch.backends.dlinfer.maca import MacaOpsBackend

    # As get_k_block_shape of each has it.
    layouts = {AscendOpsBackend: "BSND", CambOpsBackend: "BNSD", MacaOpsBackend: "BSND"}
    for backend, layout in layouts.items():
        around(backend, "build_graph_runner")(functools.partial(_build_marked, layout))
        around(backend, "update_step_context")(_update_by_engine)


def _build_marked(
    layout: str,
    original: Any,
    model: Any,
    model_config: Any,
    cache_config: Any,
    backend_config: Any,
    device: Any,
) -> Any:
    runner = original(model, model_config, cache_config, backend_config, device)
    runner.cache_layout = layout
    setattr(cache_config, _GRAPH_MODE, not backend_config.eager_mode)
    return runner


def _update_by_engine(original: Any, backend: Any, step_context: Any) -> Any:
    config = step_context.cache_config
    with _TURN:
        # A table of the engine that came before, with its number and size of blocks.
        backend.total_slots = None
        backend.enable_graph = getattr(config, _GRAPH_MODE)
        backend.max_batches = config.max_batches
        return original(backend, step_context)


# ---- older backends ----
#
# `device_type` camb and maca: LMDeploy 0.18 has their backends, but has not brought them along with its attention.
#
# Both build the attention's metadata with names of 0.16 and without the lengths on the CPU that attention now reads, and both
# take a graph runner that records CUDA graphs. Here they get what ascend gets.


def _serve_older_backends() -> None:
    from lmdeploy.pytorch.backends.dlinfer.camb import CambOpsBackend
    from lmdeploy.pytorch.backends.dlinfer.maca import MacaOpsBackend

    for backend in (CambOpsBackend, MacaOpsBackend):
        backend.build_graph_runner = staticmethod(_graph_runner)
        backend.get_attention_metadata_cls = staticmethod(lambda: _metadata)


def _graph_runner(*args: Any, **kwargs: Any) -> Any:
    from dlinfer.framework.lmdeploy_ext.cudagraph.ascend_cudagraph import AscendGraphRunner

    return AscendGraphRunner(*args, **kwargs)


def _metadata(
    is_decoding: bool,
    block_offsets: torch.Tensor,
    *,
    q_start_loc: torch.Tensor,
    kv_seqlens: torch.Tensor,
    max_q_seq_len: int,
    max_kv_seq_len: int,
    cu_seq_lens_kv: torch.Tensor | None = None,
    attention_mask: Any = None,
    **rest: Any,
) -> Any:
    """The metadata of 0.18 from the names of 0.16. `q_start_loc` has the end of the last sequence too."""
    from lmdeploy.pytorch.backends.dlinfer.attention import DlinferAttentionMetadata

    ends = q_start_loc
    return DlinferAttentionMetadata(
        is_decoding,
        block_offsets,
        q_start_loc=ends[:-1],
        cu_seqlens_q=ends,
        cu_seqlens_q_cpu=ends.cpu(),
        kv_seqlens=kv_seqlens,
        kv_seqlens_cpu=kv_seqlens.cpu(),
        max_q_seqlen=max(max_q_seq_len, 1),
        # -1 says that nobody computed it.
        max_kv_seq_len=max(max_kv_seq_len, 0),
        attention_mask=attention_mask or (),
        **rest,
    )
