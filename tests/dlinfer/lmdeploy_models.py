"""Small language models with random weights, saved as Hugging Face folders that LMDeploy and transformers both load.

Weights are drawn large enough that every layer matters: with the usual 0.02 a model repeats one token whatever attention does,
and a test of equal tokens would prove nothing. Biases and norms are drawn too, so a kernel that forgets one is seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

SPECIAL = ("<s>", "</s>", "<pad>")
CHAT_TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"
#: Sizes of every model; each has grouped-query attention. LMDeploy's blocks are 64 tokens, prompts cross that border.
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "dtype": "float32",
}
LLAMA3_ROPE = {"rope_type": "default", "rope_theta": 500000.0}
#: As in Llama 3.1, with the original length far from the new one, so that mistaking one for the other changes tokens.
LLAMA31_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class SmallModel:
    """A saved model and the transformers model with the same weights."""

    folder: Path
    reference: Any
    tokenizer: PreTrainedTokenizerFast
    remote_code: bool = False

    def greedy(self, prompt: str, new_tokens: int) -> list[int]:
        """The tokens that transformers writes after a prompt, alone in its batch."""
        ids = torch.tensor([self.tokenizer(prompt).input_ids])
        return greedy_tokens(self.reference, {"input_ids": ids}, new_tokens)


def greedy_tokens(reference: Any, inputs: dict[str, Any], new_tokens: int) -> list[int]:
    """The greedy continuation by transformers. The end of text is never chosen, which is LMDeploy's `ignore_eos`."""
    output = reference.generate(
        **inputs, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False
    )
    return output[0, inputs["input_ids"].shape[1] :].tolist()  # type: ignore[no-any-return]


def save_tokenizer(folder: Path, extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Save a tokenizer of bytes: one token for each, and the special ones."""
    vocabulary = {
        token: index
        for index, token in enumerate((*SPECIAL, *extra, *sorted(pre_tokenizers.ByteLevel.alphabet())))
    }
    fast = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[1],
        pad_token=SPECIAL[2],
        additional_special_tokens=list(extra),
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def draw_weights(model: torch.nn.Module, seed: int, embedding: float = 0.2) -> None:
    """Give every parameter values that matter to the result, the same ones for the same seed.

    An embedding that outweighs the layers would make a model with tied weights repeat its last token.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            noise = 0.2 * noise + (0.0 if name.endswith("bias") else 1.0)
        else:
            noise = noise * (embedding if "embed" in name else 2.0 / parameter[0].numel() ** 0.5)
        parameter.data.copy_(noise)


def _saved(folder: Path, model: Any, seed: int, embedding: float = 0.2) -> SmallModel:
    tokenizer = save_tokenizer(folder)
    draw_weights(model, seed, embedding)
    model.eval().save_pretrained(folder)
    return SmallModel(folder, model, tokenizer)


def _vocabulary() -> int:
    return len(SPECIAL) + 256


def llama3(folder: Path) -> SmallModel:
    """Llama 3: grouped-query attention, rotary base 500,000."""
    return _saved(
        folder,
        LlamaForCausalLM(LlamaConfig(vocab_size=_vocabulary(), rope_parameters=LLAMA3_ROPE, **SHAPE)),
        3,
    )


def llama31(folder: Path) -> SmallModel:
    """Llama 3.1: low frequencies of the rotary embedding are stretched."""
    return _saved(
        folder,
        LlamaForCausalLM(LlamaConfig(vocab_size=_vocabulary(), rope_parameters=LLAMA31_ROPE, **SHAPE)),
        31,
    )


def qwen2(folder: Path) -> SmallModel:
    """Qwen 2: biases on queries, keys and values, one matrix for both ends of the vocabulary."""
    config = Qwen2Config(vocab_size=_vocabulary(), tie_word_embeddings=True, **SHAPE)
    return _saved(folder, Qwen2ForCausalLM(config), 2)


def mixtral(folder: Path) -> SmallModel:
    """Mixtral: two of four experts for each token, weights of the two made to add up to one."""
    config = MixtralConfig(
        vocab_size=_vocabulary(), num_local_experts=4, num_experts_per_tok=2, sliding_window=None, **SHAPE
    )
    return _saved(folder, MixtralForCausalLM(config), 8)


def qwen2_moe(folder: Path) -> SmallModel:
    """Qwen2-57B-A14B's kind: a shared expert behind a gate, weights of the chosen experts left as they are."""
    config = Qwen2MoeConfig(
        vocab_size=_vocabulary(),
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48,
        norm_topk_prob=False,
        **SHAPE,
    )
    return _saved(folder, Qwen2MoeForCausalLM(config), 57)


def mistral(folder: Path) -> SmallModel:
    """Mistral 7B of the first release: a query sees the last keys only. Prompts are longer than the window."""
    config = MistralConfig(vocab_size=_vocabulary(), sliding_window=20, **SHAPE)
    return _saved(folder, MistralForCausalLM(config), 7)


def gemma2(folder: Path) -> SmallModel:
    """Gemma 2: scores and logits are capped, every other layer has a window, a scale of its own."""
    config = Gemma2Config(
        vocab_size=_vocabulary(),
        head_dim=16,
        sliding_window=20,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=8.0,
        **SHAPE,
    )
    return _saved(folder, Gemma2ForCausalLM(config), 0, embedding=0.002)


_INTERNLM2_CONFIG = '''"""Configuration of InternLM2. transformers does not have it: it comes with the folder, as on the hub."""

from transformers import PretrainedConfig


class InternLM2Config(PretrainedConfig):
    model_type = "internlm2"

    def __init__(self, bias=False, rope_theta=1000000.0, rope_scaling=None, hidden_act="silu", rms_norm_eps=1e-6, **kwargs):
        self.bias, self.rope_theta, self.rope_scaling = bias, rope_theta, rope_scaling
        self.hidden_act, self.rms_norm_eps = hidden_act, rms_norm_eps
        super().__init__(**kwargs)
'''


def internlm2(folder: Path, rope_scaling: dict[str, Any] | None = None) -> SmallModel:
    """InternLM2: llama's mathematics with other names, and queries, keys and values in one interleaved matrix.

    transformers has no InternLM2, so the reference is a llama with the same numbers.
    """
    theta = 1000000.0
    reference = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=_vocabulary(), rope_parameters={"rope_type": "default", "rope_theta": theta}, **SHAPE
        )
    ).eval()
    draw_weights(reference, 25)
    tokenizer = save_tokenizer(folder)
    save_file(dict(_internlm2_weights(reference)), folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["InternLM2ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_internlm2.InternLM2Config"},
        "model_type": "internlm2",
        "bias": False,
        "rms_norm_eps": reference.config.rms_norm_eps,
        "rope_theta": theta,
        "rope_scaling": rope_scaling,
        "vocab_size": _vocabulary(),
        **SHAPE,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_internlm2.py").write_text(_INTERNLM2_CONFIG)
    return SmallModel(folder, reference, tokenizer, remote_code=True)


def internlm25(folder: Path) -> SmallModel:
    """InternLM2.5: the same, and its configuration asks for another rotary base beyond the longest position."""
    return internlm2(folder, rope_scaling={"type": "dynamic", "factor": 2.0})


def _internlm2_weights(reference: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """A llama's weights under InternLM2's names."""
    names = {
        "model.embed_tokens": "model.tok_embeddings",
        "lm_head": "output",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }
    weights = reference.state_dict()
    for name, weight in weights.items():
        if "q_proj" in name:
            key, value = (weights[name.replace("q_proj", other)] for other in ("k_proj", "v_proj"))
            yield name.replace("self_attn.q_proj", "attention.wqkv"), _interleaved(weight, key, value)
        elif "k_proj" not in name and "v_proj" not in name:
            part = next((old for old in names if old in name), name)
            yield name.replace(part, names.get(part, part)), weight.contiguous()


def _interleaved(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """InternLM2's wqkv: for each head of keys its heads of queries, then the keys, then the values."""
    kv_heads, size = SHAPE["num_key_value_heads"], SHAPE["hidden_size"]
    parts = [matrix.view(kv_heads, -1, size) for matrix in (query, key, value)]
    return torch.cat(parts, dim=1).reshape(-1, size).contiguous()


BUILDERS: dict[str, Callable[[Path], SmallModel]] = {
    "llama3": llama3,
    "llama31": llama31,
    "internlm2": internlm2,
    "internlm25": internlm25,
    "qwen2": qwen2,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "mistral": mistral,
    "gemma2": gemma2,
}
