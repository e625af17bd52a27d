"""Qwen2: a Llama with biases on queries, keys and values, and the embedding as output layer."""

from __future__ import annotations

from transformers import Qwen2Config, Qwen2ForCausalLM

from language import SIZES, VOCABULARY
from training import Experiment, greedy, main, own_loss, token_samples


def build() -> Experiment:
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=2, tie_word_embeddings=True))
    return Experiment(model, token_samples(VOCABULARY), own_loss, greedy)


if __name__ == "__main__":
    main(build)
