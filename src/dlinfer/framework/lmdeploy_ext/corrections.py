"""What LMDeploy 0.18 gets wrong on the way to dlinfer's operators, put right from outside.

Each correction is a function of its own. tests/dlinfer/test_lmdeploy_models.py compares with transformers what it changes, and
test_lmdeploy_quantised.py does for padding.
A later LMDeploy that is right by itself makes it do nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from dlinfer.framework.lmdeploy_ext import attention_extras
from dlinfer.framework.lmdeploy_ext.device_types import serves

__all__ = ["install"]


@functools.cache
def install() -> None:
    """Apply all corrections; once in a process."""
    _keep_float32()
    _keep_keys_for_layers_without_window()
    _stretch_rotary_of_llama31()
    _keep_embedding_of_padding()
    attention_extras.install()


def _keep_float32() -> None:
    """`dtype="auto"` serves a model in the dtype that its config.json names.

    LMDeploy makes float16 of float32, and its settings have no word for float32. On a CPU that is slower and less exact.
    """
    from lmdeploy.pytorch import config

    original = config._update_torch_dtype

    @functools.wraps(original)
    def update(model_config: Any, dtype: str, device_type: str = "auto") -> Any:
        updated = original(model_config, dtype, device_type=device_type)
        if dtype == "auto" and serves(device_type) and _saved_dtype(model_config.hf_config) is torch.float32:
            updated.dtype = torch.float32
        return updated

    config._update_torch_dtype = update


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

    original = ModelConfig.from_hf_config.__func__

    @functools.wraps(original)
    def from_hf_config(cls: Any, hf_config: Any, *args: Any, **kwargs: Any) -> Any:
        model_config = original(cls, hf_config, *args, **kwargs)
        kinds = getattr(model_config.llm_config, "layer_types", None) or ()
        if serves(kwargs.get("device_type", "auto")) and "full_attention" in kinds:
            model_config.sliding_window = -1
        return model_config

    ModelConfig.from_hf_config = classmethod(from_hf_config)


def _stretch_rotary_of_llama31() -> None:
    """Llama 3.1 stretches its rotary embedding from the original length; LMDeploy hands over the new length in its place."""
    from lmdeploy.pytorch.backends.dlinfer import rotary_embedding
    from lmdeploy.pytorch.backends.rotary_embedding import RopeType

    original = rotary_embedding._build_rotary_embedding

    @functools.wraps(original)
    def build(spec: Any) -> Any:
        if spec.emb_type == RopeType.Llama3:
            length = spec.llama3_params.original_max_position_embeddings
            spec = dataclasses.replace(spec, max_position_embeddings=length)
        return original(spec)

    rotary_embedding._build_rotary_embedding = build


def _keep_embedding_of_padding() -> None:
    """LMDeploy sets the embedding of `pad_token_id` to 0 when it loads a model of the Qwen or InternLM families.

    transformers keeps the row as it was saved. It may be the row of a token that prompts have, such as the one that ends an
    answer; where one matrix is at both ends of the vocabulary, the score of that token is then always 0.
    """
    from lmdeploy.pytorch.backends import get_backend
    from lmdeploy.pytorch.nn.embedding import ParallelEmbedding

    original = ParallelEmbedding.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if serves(get_backend().get_name()):
            self.padding_idx = None

    ParallelEmbedding.__init__ = init
