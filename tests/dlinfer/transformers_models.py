"""Small decoders of transformers with weights that matter, and batches with padding, for the tests of transformers_ext."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lmdeploy_models import draw_weights
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dlinfer.framework.transformers_ext.decoder import DecoderForward

VOCABULARY = 97
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
#: What is special about each: biases, a window in all layers, a window in some layers, norms of heads, soft caps.
SUPPORTED = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=7)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=5, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
}
UNSUPPORTED = {
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **SHAPE,
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=6,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=None,
        )
    ),
}


def small(name: str) -> Any:
    """A model by its name, in eval mode, the same weights each time."""
    model = (SUPPORTED | UNSUPPORTED)[name]()
    draw_weights(model, seed=1)
    return model.eval()


def padded() -> dict[str, Tensor]:
    """Three prompts of 7, 11 and 2 tokens, padded on the left."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (3, 11), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    mask[2, :9] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def generated(model: Any, inputs: dict[str, Tensor], tokens: int = 12, **options: Any) -> Any:
    """What `generate` gives, with the scores of every step; the same random numbers each time."""
    torch.manual_seed(1)
    chosen = {"do_sample": False, **options}
    return model.generate(
        **inputs, max_new_tokens=tokens, output_scores=True, return_dict_in_generate=True, **chosen
    )


def same(first: Any, second: Any) -> None:
    """Equal tokens, and scores within rounding; on any devices."""
    assert torch.equal(first.sequences.cpu(), second.sequences.cpu())
    assert len(first.scores) == len(second.scores)
    for one, other in zip(first.scores, second.scores, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), atol=5e-5, rtol=5e-5)


def counted_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens go through stacks of layers, call by call, from now on."""
    seen: list[int] = []
    run = DecoderForward._run

    def counted(self: DecoderForward, states: Any, positions: Any, batch: Any, held: Any) -> Any:
        seen.append(states.shape[1])
        return run(self, states, positions, batch, held)

    monkeypatch.setattr(DecoderForward, "_run", counted)
    return seen
