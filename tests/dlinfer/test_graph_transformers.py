"""A decoder of transformers with dlinfer's attention as one graph, beside transformers as it is."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
import torch

import dlinfer.graph

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import dlinfer.framework.transformers_ext

pytestmark = pytest.mark.unit

PROMPT, NEW = 7, 10


def test_decoding_with_a_static_cache_is_a_graph() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        max_position_embeddings=64,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    ours = copy.deepcopy(model)
    ours.set_attn_implementation("dlinfer")
    step = dlinfer.graph.compile(ours)
    for batch in (4, 1, 2, 9):
        prompt = torch.randint(1, 128, (batch, PROMPT))
        wanted = model.generate(prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)[:, PROMPT:]
        cache = StaticCache(config=config, max_cache_len=PROMPT + NEW)
        with torch.no_grad():
            tokens = [ours(prompt, past_key_values=cache).logits[:, -1:].argmax(-1)]
        while len(tokens) < NEW:
            tokens.append(step(input_ids=tokens[-1], past_key_values=cache).logits[:, -1:].argmax(-1))
        assert torch.equal(torch.cat(tokens, 1), wanted)
    assert len(step.graphs) <= 2, (
        "transformers asks whether a batch is one: a graph for that, and one for all others"
    )
    assert step.graphs[0].operators == 2 * ["paged_prefill_attention"]
    assert len(wanted.unique()) > 12, "a model that repeats itself would prove nothing"
