"""The models that compilers of graphs are timed with: six rows, and the same transformer trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ROWS", "SMALL", "Subject", "TrainingStep", "Transformer", "smollm2", "subject", "tokens"]

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Subject:
    """A model without gradients, and what it is called with."""

    model: nn.Module
    inputs: Inputs


class Pointwise(nn.Module):
    """Formulas, then a norm over rows of 1024."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(1024)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.gelu(x) * torch.sigmoid(x) + torch.tanh(x))


class Layer(nn.Module):
    """Causal attention and a feed-forward part, the norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x: Tensor) -> Tensor:
        parts = self.queries_keys_values(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return self.merge(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.forward_norm(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4, vocabulary: int = 1000) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.tokens(ids))))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, given: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(given, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.second = nn.Sequential(
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        )
        changes = stride != 1 or given != channels
        short = nn.Sequential(nn.Conv2d(given, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        self.short = short if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.short(x))


class ResNet(nn.Sequential):
    """A small one, with statistics of its norms that are not those of new ones."""

    def __init__(self) -> None:
        stem = (nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        body = (Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
        super().__init__(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]


class Logits(nn.Module):
    """A language model without a cache: numbers of tokens in, logits out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits


def smollm2() -> nn.Module:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from dlinfer.checkpoints import smollm2 as checkpoint

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return Logits(AutoModelForCausalLM.from_pretrained(checkpoint.folder(), dtype=torch.float32))


def tokens(vocabulary: int, *shape: int) -> Inputs:
    return (torch.randint(0, vocabulary, shape),)


ROWS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "pointwise": (Pointwise, lambda: (torch.randn(1024, 1024),)),
    "transformer B4 T128": (Transformer, lambda: tokens(1000, 4, 128)),
    "transformer B1 T1": (Transformer, lambda: tokens(1000, 1, 1)),
    "ResNet": (ResNet, lambda: (torch.randn(4, 3, 112, 112),)),
    "SmolLM2 T=1": (smollm2, lambda: tokens(49000, 1, 1)),
    "SmolLM2 T=64": (smollm2, lambda: tokens(49000, 1, 64)),
}
SMALL = tuple(ROWS)[:4]


def subject(row: str, dtype: torch.dtype = torch.float32) -> Subject:
    """A row's model and inputs, the same at every call."""
    make_model, make_inputs = ROWS[row]
    torch.manual_seed(0)
    model = make_model().eval().requires_grad_(False).to(dtype)
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in make_inputs())
    return Subject(model, inputs)


class TrainingStep:
    """One step of training of the transformer: forward, backward and AdamW, each compiled by the backend, or none of them."""

    def __init__(self, backend: str | None) -> None:
        torch.manual_seed(0)
        self.model = Transformer()
        self.ids = torch.randint(0, 1000, (4, 129))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, capturable=False, foreach=True)

        def loss(ids: Tensor) -> Tensor:
            return F.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

        self.loss: Callable[[Tensor], Tensor] = loss
        self.update: Callable[[], Any] = self.optimizer.step
        if backend is not None:
            self.loss = torch.compile(loss, backend=backend, dynamic=False)
            self.update = torch.compile(self.optimizer.step, backend=backend, dynamic=False)

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(self.ids)
        loss.backward()
        self.update()
        return loss.item()
