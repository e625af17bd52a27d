"""A small character-level GPT in plain PyTorch, shared by the demo, the tests and the benchmarks.

Nothing here knows about a device: the same code runs wherever its tensors are, which is what is being shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CORPUS = Path(__file__).with_name("corpus.txt")


@dataclass(frozen=True)
class GPTConfig:
    vocabulary: int
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.project_in = nn.Linear(config.width, 3 * config.width)
        self.project_out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.project_in(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention, then a two-layer network; each is added to what came in."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_network = nn.LayerNorm(config.width)
        self.network = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.network(self.norm_network(x))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and an output layer that shares the token embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int, temperature: float = 0.8) -> Tensor:
        """Append `count` sampled tokens to each row, reading at most one context back."""
        for _ in range(count):
            logits = self(tokens[:, -self.config.context :])[:, -1]
            chosen = torch.multinomial(F.softmax(logits / temperature, dim=-1), num_samples=1)
            tokens = torch.cat((tokens, chosen), dim=1)
        return tokens


class CharacterText:
    """A text as numbers; its batches come from a CPU generator of its own, so every device gets the same."""

    def __init__(self, text: str, seed: int) -> None:
        self.characters = sorted(set(text))
        self._index = {character: i for i, character in enumerate(self.characters)}
        self.data = self.encode(text)
        self._generator = torch.Generator(device="cpu").manual_seed(seed)

    def encode(self, text: str) -> Tensor:
        return torch.tensor([self._index[character] for character in text], device="cpu")

    def decode(self, tokens: Tensor) -> str:
        return "".join(self.characters[i] for i in tokens.tolist())

    def batch(self, size: int, length: int) -> tuple[Tensor, Tensor]:
        """Windows of the text and the same windows one character later."""
        starts = torch.randint(len(self.data) - length, (size, 1), generator=self._generator, device="cpu")
        window = starts + torch.arange(length + 1, device="cpu")
        rows = self.data[window]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
