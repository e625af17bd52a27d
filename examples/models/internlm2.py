"""InternLM2 in plain torch: one projection for queries, keys and values, stored by groups of heads that share a key.

transformers has no class for it, so this one is written out, with a cache of keys and values for generation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from language import VOCABULARY
from training import Experiment, Sample, main, token_samples

WIDTH, LAYERS, HEADS, KEY_HEADS, INNER = 64, 2, 4, 2, 160
HEAD = WIDTH // HEADS
ROTARY_BASE = 1e6

Cache = list[tuple[Tensor, Tensor]]


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn pairs of channels by an angle that grows with the position."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, HEAD, 2, device=x.device, dtype=torch.float32) / HEAD)
    angles = positions[:, None].float() * frequencies
    cosine, sine = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    first, second = x.chunk(2, dim=-1)
    return x * cosine.to(x.dtype) + torch.cat([-second, first], -1) * sine.to(x.dtype)


class Norm(nn.Module):
    """Divide by the root mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        upcast = x.float()
        return self.weight * (upcast * torch.rsqrt(upcast.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wqkv = nn.Linear(WIDTH, (HEADS + 2 * KEY_HEADS) * HEAD, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, positions: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, ...]:
        rows, length, _ = x.shape
        groups = self.wqkv(x).view(rows, length, KEY_HEADS, HEADS // KEY_HEADS + 2, HEAD)
        query = groups[..., :-2, :].reshape(rows, length, HEADS, HEAD).transpose(1, 2)
        key, value = (groups[..., index, :].transpose(1, 2) for index in (-2, -1))
        query, key = rotate(query, positions), rotate(key, positions)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        shared = HEADS // KEY_HEADS
        mixed = F.scaled_dot_product_attention(
            query,
            key.repeat_interleave(shared, dim=1),
            value.repeat_interleave(shared, dim=1),
            is_causal=past is None,
        )
        return self.wo(mixed.transpose(1, 2).reshape(rows, length, WIDTH)), key, value


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = Norm(), Attention()
        self.ffn_norm = Norm()
        self.w1, self.w3 = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor, positions: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, ...]:
        mixed, key, value = self.attention(self.attention_norm(x), positions, past)
        x = x + mixed
        normed = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(normed)) * self.w3(normed)), key, value


class InternLM2(nn.Module):
    """Logits of the next tokens; `cache` is read and extended when it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        start = cache[0][0].shape[2] if cache else 0
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.tok_embeddings(tokens)
        for index, layer in enumerate(self.layers):
            past = cache[index] if cache and index < len(cache) else None
            x, key, value = layer(x, positions, past)
            if cache is not None:
                cache[index : index + 1] = [(key, value)]
        logits: Tensor = self.output(self.norm(x))
        return logits


def loss(model: nn.Module, batch: Sample) -> Tensor:
    logits = model(batch["input_ids"])[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"][:, 1:].flatten())


@torch.no_grad()
def generate(model: nn.Module, device: str) -> Tensor:
    """Twelve tokens, each the likeliest, one at a time behind the cached ones."""
    tokens = torch.tensor([[5, 9, 17, 33]], device=device)
    cache: Cache = []
    written = []
    for _ in range(12):
        tokens = model(tokens, cache)[:, -1:].argmax(-1)
        written.append(tokens[0])
    return torch.cat(written)


def build() -> Experiment:
    return Experiment(InternLM2(), token_samples(VOCABULARY), loss, generate)


if __name__ == "__main__":
    main(build)
