"""Models of the transformers library, small, from its configurations. Needed only to capture: `pip install transformers`."""

from __future__ import annotations

from typing import Any

import torch

from diopi.conformance.models import Builder, Step, model

_TOKENS = 96
_TEXT: dict[str, Any] = {
    "vocab_size": _TOKENS,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
}
_SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_IMAGE: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_labels": 7}
_MOE: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}

# Name -> (class prefix, task, configuration, dtype, attention).
_MODELS: dict[str, tuple[str, str, dict[str, Any], torch.dtype, str]] = {
    "llama": ("Llama", "CausalLM", {**_TEXT, "num_key_value_heads": 2}, torch.bfloat16, "eager"),
    "qwen2": ("Qwen2", "CausalLM", {**_TEXT, "num_key_value_heads": 2}, torch.float32, "sdpa"),
    "qwen3_moe": (
        "Qwen3Moe",
        "CausalLM",
        {**_TEXT, **_MOE, "num_key_value_heads": 2, "head_dim": 12, "num_experts": 4},
        torch.bfloat16,
        "eager",
    ),
    "deepseek_v3": (
        "DeepseekV3",
        "CausalLM",
        {
            **_TEXT,
            **_MOE,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 4,
        },
        torch.float32,
        "eager",
    ),
    "mixtral": (
        "Mixtral",
        "CausalLM",
        {**_TEXT, "num_key_value_heads": 2, "num_local_experts": 4, "output_router_logits": True},
        torch.float32,
        "eager",
    ),
    "gemma": (
        "Gemma",
        "CausalLM",
        {**_TEXT, "num_key_value_heads": 1, "head_dim": 16},
        torch.bfloat16,
        "eager",
    ),
    "phi3": ("Phi3", "CausalLM", {**_TEXT, **_SPECIAL, "num_key_value_heads": 2}, torch.float16, "eager"),
    "mamba": (
        "Mamba",
        "CausalLM",
        {"vocab_size": _TOKENS, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
        torch.float32,
        "",
    ),
    "gpt2": (
        "GPT2",
        "LMHeadModel",
        {"vocab_size": _TOKENS, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 32, **_SPECIAL},
        torch.float32,
        "eager",
    ),
    "bert": ("Bert", "MaskedLM", _TEXT, torch.float32, "eager"),
    "roberta": ("Roberta", "MaskedLM", {**_TEXT, **_SPECIAL}, torch.float16, "eager"),
    "albert": (
        "Albert",
        "MaskedLM",
        {**_TEXT, "embedding_size": 16, "hidden_size": 40},
        torch.float32,
        "sdpa",
    ),
    "t5": (
        "T5",
        "ConditionalGeneration",
        {
            "vocab_size": _TOKENS,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        torch.float32,
        "eager",
    ),
    "bart": (
        "Bart",
        "ConditionalGeneration",
        {
            "vocab_size": _TOKENS,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 40,
            **_SPECIAL,
        },
        torch.float32,
        "eager",
    ),
    "whisper": (
        "Whisper",
        "ConditionalGeneration",
        {
            "vocab_size": _TOKENS,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_mel_bins": 10,
            "max_source_positions": 24,
            "max_target_positions": 20,
            "decoder_start_token_id": 1,
            **_SPECIAL,
        },
        torch.float32,
        "eager",
    ),
    "vit": (
        "ViT",
        "ImageClassification",
        {
            **_IMAGE,
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 72,
        },
        torch.float32,
        "eager",
    ),
    "swin_transformer": (
        "Swin",
        "ImageClassification",
        {
            **_IMAGE,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        torch.float32,
        "eager",
    ),
}


def _tokens(config: Any, dtype: torch.dtype) -> dict[str, Any]:
    tokens = torch.randint(3, _TOKENS, (2, 14))
    return {"input_ids": tokens, "labels": tokens.clone()}


def _masked(config: Any, dtype: torch.dtype) -> dict[str, Any]:
    tokens = torch.randint(3, _TOKENS, (3, 11))
    labels = torch.where(torch.rand(3, 11) < 0.3, tokens, -100)
    labels[0, 0] = tokens[0, 0]
    attended = torch.ones_like(tokens)
    attended[1, 8:] = 0
    return {"input_ids": tokens, "attention_mask": attended, "labels": labels}


def _translated(config: Any, dtype: torch.dtype) -> dict[str, Any]:
    labels = torch.randint(3, _TOKENS, (2, 7))
    if hasattr(config, "num_mel_bins"):
        length = 2 * config.max_source_positions
        return {"input_features": torch.randn(2, config.num_mel_bins, length, dtype=dtype), "labels": labels}
    return {"input_ids": torch.randint(3, _TOKENS, (2, 12)), "labels": labels}


def _images(config: Any, dtype: torch.dtype) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32, dtype=dtype), "labels": torch.tensor([1, 5])}


_INPUTS = {
    "CausalLM": ("ForCausalLM", _tokens),
    "LMHeadModel": ("LMHeadModel", _tokens),
    "MaskedLM": ("ForMaskedLM", _masked),
    "ConditionalGeneration": ("ForConditionalGeneration", _translated),
    "ImageClassification": ("ForImageClassification", _images),
}


def _built(name: str) -> Step:
    import transformers  # type: ignore[import-not-found]

    prefix, task, settings, dtype, attention = _MODELS[name]
    suffix, inputs = _INPUTS[task]
    config = getattr(transformers, f"{prefix}Config")(**settings)
    if attention:
        config._attn_implementation = attention
    config.use_cache = False
    net = getattr(transformers, prefix + suffix)(config).to(dtype).train()
    given = inputs(config, dtype)
    optimizer = "adamw_fused" if name in ("qwen2", "bert") else "adamw"
    return Step(net, lambda: net(**given).loss, optimizer=optimizer)


def _builder(name: str) -> Builder:
    return lambda: _built(name)


for _name in _MODELS:
    model(_name)(_builder(_name))


@model("clip")
def clip() -> Step:
    """Images and texts in one space; the contrastive loss."""
    import transformers

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "projection_dim": 16,
    }
    text = {**sizes, "vocab_size": _TOKENS, "max_position_embeddings": 16, **_SPECIAL}
    image = {**sizes, "image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=16)
    config._attn_implementation = "eager"
    net = transformers.CLIPModel(config).train()
    tokens = torch.randint(3, _TOKENS, (3, 9))
    tokens[:, -1] = 2
    pixels = torch.randn(3, 3, 32, 32)
    return Step(
        net, lambda: net(input_ids=tokens, pixel_values=pixels, return_loss=True).loss, optimizer="adamw"
    )
