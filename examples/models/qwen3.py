"""Qwen3: norms on queries and keys, heads wider than their share of the model."""

from __future__ import annotations

from transformers import Qwen3Config, Qwen3ForCausalLM

from language import SIZES, VOCABULARY
from training import Experiment, greedy, main, own_loss, token_samples


def build() -> Experiment:
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=32))
    return Experiment(model, token_samples(VOCABULARY), own_loss, greedy)


if __name__ == "__main__":
    main(build)
