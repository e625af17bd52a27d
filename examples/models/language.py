"""What the language models of this folder have in common: sizes, and no end of text."""

from __future__ import annotations

from typing import Any

VOCABULARY = 160

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "pad_token_id": 0,
    "eos_token_id": None,
    "attention_dropout": 0.0,
}
"""Keyword arguments that the configurations of all decoders take."""
