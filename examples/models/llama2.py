"""Llama 2: rotary positions, RMS norms, gated network, as many key heads as query heads."""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM

from language import SIZES, VOCABULARY
from training import Experiment, greedy, main, own_loss, token_samples


def build() -> Experiment:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=4))
    return Experiment(model, token_samples(VOCABULARY), own_loss, greedy)


if __name__ == "__main__":
    main(build)
