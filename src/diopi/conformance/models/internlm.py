"""A language model of the InternLM2 kind, which keeps query, key and value in one matrix, grouped by key heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diopi.conformance.models import Step, model

_HEADS, _KEYS, _WIDTH, _TOKENS = 4, 2, 16, 100


class _Norm(nn.Module):
    """RMS norm, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        upcast = x.float()
        scaled = upcast * torch.rsqrt(upcast.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * scaled.to(x.dtype)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = _HEADS * _WIDTH
        self.norms = nn.ModuleList(_Norm(size) for _ in range(2))
        self.joined = nn.Linear(size, (_HEADS + 2 * _KEYS) * _WIDTH, bias=False)
        self.out = nn.Linear(size, size, bias=False)
        self.gate = nn.Linear(size, 3 * size // 2, bias=False)
        self.up = nn.Linear(size, 3 * size // 2, bias=False)
        self.down = nn.Linear(3 * size // 2, size, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
        n, t, _ = x.shape
        joined = self.joined(self.norms[0](x)).view(n, t, _KEYS, _HEADS // _KEYS + 2, _WIDTH)
        query = joined[..., :-2, :].reshape(n, t, _HEADS, _WIDTH).transpose(1, 2)
        key, value = (joined[..., i, :].transpose(1, 2) for i in (-2, -1))
        query, key = _rotated(query, cosine, sine), _rotated(key, cosine, sine)
        key, value = (v.repeat_interleave(_HEADS // _KEYS, 1) for v in (key, value))
        scores = query @ key.transpose(2, 3) / _WIDTH**0.5 + mask
        mixed = torch.softmax(scores, -1, dtype=torch.float32).to(x.dtype) @ value
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, -1))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class _Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_TOKENS, _HEADS * _WIDTH, padding_idx=2)
        self.layers = nn.ModuleList(_Layer() for _ in range(2))
        self.norm = _Norm(_HEADS * _WIDTH)
        self.head = nn.Linear(_HEADS * _WIDTH, _TOKENS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        t = tokens.shape[1]
        rates = 1.0 / (10_000.0 ** (torch.arange(0, _WIDTH, 2).float() / _WIDTH))
        angles = torch.outer(torch.arange(t).float(), rates).repeat(1, 2)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        mask = torch.full((t, t), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        for layer in self.layers:
            x = layer(x, cosine, sine, mask)
        logits: Tensor = self.head(self.norm(x))
        return logits


@model("internlm2")
def internlm2() -> Step:
    """Two layers in bfloat16, next-token loss."""
    net = _Language().to(torch.bfloat16)
    tokens = torch.randint(3, _TOKENS, (2, 13))

    def loss() -> Tensor:
        logits = net(tokens)[:, :-1].float()
        return F.cross_entropy(logits.reshape(-1, _TOKENS), tokens[:, 1:].reshape(-1))

    return Step(net, loss, optimizer="adamw")
