"""Three small trainings on a device, and everything a tool could have changed in them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = os.environ.get("OP_TOOLS_TEST_DEVICE", "dipu")
if DEVICE == "dipu":
    import torch_dipu  # noqa: F401  registers the device
else:
    # Two runs must be the same before a tool can be said to leave them the same.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)


class Transformer(nn.Module):
    """Embedding, two attention blocks with dropout, a tied-size head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, activation="gelu")
            for _ in range(2)
        )
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Convolutions(nn.Module):
    """Convolutions with batch norm (which writes its running statistics) and an in-place activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(images).flatten(1))


class Recurrent(nn.Module):
    """Two LSTM layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 16, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(series)[0][:, -1])


@dataclass(frozen=True)
class Training:
    """A model, its optimizer and its data."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    batch: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]

    def run(
        self, steps: int, autocast: bool = False, device: str = DEVICE, dtype: torch.dtype = torch.float32
    ) -> Outcome:
        """Train from a fixed seed and return all that is left."""
        torch.manual_seed(7)
        model = self.model().to(device, dtype)
        optimizer = self.optimizer(model.parameters())
        data = torch.Generator("cpu").manual_seed(3)
        losses = []
        for _ in range(steps):
            x, y = (tensor.to(device) for tensor in self.batch(data))
            x = x.to(dtype) if x.is_floating_point() else x
            with torch.autocast(device, torch.bfloat16) if autocast else contextlib.nullcontext():
                out = model(x)
                loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            optimizer.step()
            losses.append(loss.item())
        state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
        slots = {
            f"{index}.{name}": value.cpu()
            for index, slot in enumerate(optimizer.state.values())
            for name, value in slot.items()
            if isinstance(value, torch.Tensor)
        }
        randoms = {
            "cpu": torch.get_rng_state(),
            "device": torch.get_device_module(device).get_rng_state().cpu(),
        }
        return Outcome(losses, state, slots, randoms)


@dataclass
class Outcome:
    """Losses, weights and buffers, optimizer state, random states."""

    losses: list[float]
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    randoms: dict[str, torch.Tensor]

    def differences(self, other: Outcome) -> list[str]:
        """The names of everything that is not bit for bit the same."""
        found = [] if self.losses == other.losses else ["losses"]
        for part in ("weights", "optimizer", "randoms"):
            mine, theirs = getattr(self, part), getattr(other, part)
            assert mine.keys() == theirs.keys()
            found += [f"{part}.{name}" for name in mine if not torch.equal(mine[name], theirs[name])]
        return found


def _tokens(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(50, (4, 12), generator=g), torch.randint(50, (4, 12), generator=g)


def _images(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 12, 12, generator=g), torch.randint(10, (4,), generator=g)


def _series(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 6, 12, generator=g), torch.randint(5, (4,), generator=g)


TRAININGS = {
    "transformer": Training(
        Transformer, lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-4, foreach=False), _tokens
    ),
    "convolutions": Training(
        Convolutions, lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=False), _images
    ),
    "lstm": Training(Recurrent, lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-4, foreach=False), _series),
}
