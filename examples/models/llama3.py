"""Llama 3: as Llama 2, with grouped key heads and a larger base of the rotary positions."""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM

from language import SIZES, VOCABULARY
from training import Experiment, greedy, main, own_loss, token_samples


def build() -> Experiment:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, rope_theta=500000.0))
    return Experiment(model, token_samples(VOCABULARY), own_loss, greedy)


if __name__ == "__main__":
    main(build)
