"""BERT: a bidirectional encoder that learns to fill in masked words."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from language import VOCABULARY
from training import Experiment, Sample, main, own_loss, token_samples

MASK = 2


def masked(text: Tensor) -> Sample:
    """Every fourth word is hidden, and only it counts."""
    hidden = torch.arange(len(text)) % 4 == 1
    return {
        "input_ids": text.masked_fill(hidden, MASK),
        "labels": text.masked_fill(~hidden, -100),
        "attention_mask": torch.ones_like(text),
    }


def build() -> Experiment:
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=160,
        max_position_embeddings=64,
        # Every device draws its own random numbers: without dropout their losses can be compared.
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    samples = [masked(sample["input_ids"]) for sample in token_samples(VOCABULARY)]

    def fill_in(model: nn.Module, device: str) -> Tensor:
        with torch.no_grad():
            words: Tensor = model(samples[0]["input_ids"][None].to(device)).logits.argmax(-1)
        return words[0, 1::4]

    return Experiment(BertForMaskedLM(config), samples, own_loss, fill_in)


if __name__ == "__main__":
    main(build)
