"""Fourteen small trainings that ask different things of autograd and of the optimizer, each from fixed seeds.

Twelve run in one process, two in two ranks. `Training.run` returns all that a tool could have changed.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, GPTConfig

Loss = Callable[[Any, Tensor, Tensor], Tensor]
Kept = dict[str, Tensor]


class Blocks(nn.Module):
    """Embedding and attention blocks with dropout; `reentrant` recomputes them in backward, in one way or the other."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.embedding = nn.Embedding(40, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Convolutions(nn.Module):
    """Batch norm writes its running statistics; an activation works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 40),
        )  # fmt: skip

    def forward(self, tokens: Tensor) -> Tensor:
        images = F.one_hot(tokens[:, :8], 40)[:, None, :, :8].to(next(self.parameters()).dtype)
        return self.layers(images)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 12)
        self.lstm = nn.LSTM(12, 12, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(12, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


class Autoencoder(nn.Module):
    """Draws on the device in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(40, 8), nn.Linear(4, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.one_hot(tokens, 40).to(self.encoder.weight.dtype)
        mean, spread = self.encoder(x).chunk(2, dim=-1)
        return self.decoder(mean + torch.randn_like(mean) * F.softplus(spread))


class Graph(nn.Module):
    """Messages along edges: gather, index_add, scatter, unequal use of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.message, self.head = nn.Embedding(40, 8), nn.Linear(8, 8), nn.Linear(8, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).flatten(0, 1)
        source, target = tokens.flatten() % len(x), tokens.flip(1).flatten() % len(x)
        x = x.index_add(0, target, self.message(x[source]))
        order = x.sum(dim=1).sort().indices
        x = x.scatter(0, order[:, None].expand_as(x), x.gather(0, target[:, None].expand_as(x)))
        return self.head(x).view(*tokens.shape, 40)


class Experts(nn.Module):
    """Each token goes to two of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.router, self.head = nn.Embedding(40, 8), nn.Linear(8, 4), nn.Linear(8, 40)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).flatten(0, 1)
        weights, chosen = self.router(x).softmax(dim=-1).topk(2, dim=-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            y[rows] += expert(x[rows]) * weights[rows, slots, None]
        return self.head(x + y).view(*tokens.shape, 40)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Embedding(40, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 40))


def cross_entropy(model: Any, tokens: Tensor, labels: Tensor) -> Tensor:
    out = model(tokens)
    return F.cross_entropy(out.flatten(0, -2).float(), labels.flatten()[: out.numel() // out.shape[-1]])


def gradient_penalty(model: Any, tokens: Tensor, labels: Tensor) -> Tensor:
    """The slope of the output is part of the loss: a second derivative."""
    x = model[0](tokens)
    out = model[1:](x)
    (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    penalty = (slope.float().norm(dim=-1) - 1).square().mean()
    return F.cross_entropy(out.flatten(0, -2).float(), labels.flatten()) + penalty


def with_hooks(model: Any, tokens: Tensor, labels: Tensor) -> Tensor:
    """Tensors, nodes and modules are hooked, and each hook changes gradients."""
    handle = model[2].register_full_backward_hook(lambda _, grads, __: (grads[0] * 0.5,))
    x = model[0](tokens)
    x.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    out = model[1:](x)
    out.grad_fn.register_prehook(lambda grads: (grads[0] * 2, *grads[1:]))
    out.register_hook(lambda grad: grad.mul_(0.9))
    handle.remove()
    return F.cross_entropy(out.flatten(0, -2).float(), labels.flatten())


@dataclasses.dataclass(frozen=True)
class Training:
    """A model, its loss and its optimizer."""

    model: Callable[[], nn.Module]
    loss: Loss = cross_entropy
    optimizer: str = "AdamW"
    ranks: str = ""  # "ddp" or "fsdp": the way the model is spread over ranks

    def run(self, steps: int, dtype: torch.dtype, device: torch.device) -> Kept:
        """Train and return losses, weights, buffers, optimizer state and random states."""
        torch.manual_seed(7)
        model = self.model().to(device, dtype)
        called = self._spread(model, device)
        optimizer = self._optimizer(model)
        data = torch.Generator().manual_seed(3 + (device.index or 0))
        losses = []
        for _ in range(steps):
            tokens, labels = (torch.randint(40, (4, 12), generator=data).to(device) for _ in range(2))

            def closure(tokens: Tensor, labels: Tensor) -> Tensor:
                optimizer.zero_grad()
                loss = self.loss(called, tokens, labels)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
                return loss

            step: Any = functools.partial(closure, tokens, labels)
            losses.append(float(optimizer.step(step)))
        return {"losses": torch.tensor(losses, dtype=torch.float64), **_state(model, optimizer, device)}

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.optimizer == "LBFGS":
            return torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=4)
        if self.optimizer == "SGD":
            return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def _spread(self, model: nn.Module, device: torch.device) -> Any:
        if self.ranks == "ddp":
            return nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
        if self.ranks == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
            for part in list(model.children()):
                fully_shard(part, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model


def _state(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Kept:
    kept: dict[str, Any] = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, slots in enumerate(optimizer.state.values()):
        for name, value in slots.items():
            for number, item in enumerate(value if isinstance(value, list) else [value]):
                kept[f"optimizer.{index}.{name}.{number}"] = item
    kept["random.cpu"] = torch.get_rng_state()
    kept["random.device"] = torch.get_device_module(device).get_rng_state()
    return {name: _plain(value) for name, value in kept.items() if isinstance(value, Tensor | int | float)}


def _plain(value: Any) -> Tensor:
    """The bits, on the CPU; of a tensor that is spread over ranks, those of this rank."""
    if not isinstance(value, Tensor):
        return torch.tensor(value)
    local = value.to_local() if hasattr(value, "to_local") else value
    return local.detach().cpu().clone()


def differing(mine: Kept, other: Kept) -> list[str]:
    """The names of what is not bit for bit the same."""
    if mine.keys() != other.keys():
        return [f"only in one run: {', '.join(sorted(mine.keys() ^ other.keys()))}"]
    return [name for name in mine if not _same_bits(mine[name], other[name])]


def _same_bits(mine: Tensor, other: Tensor) -> bool:
    def bits(value: Tensor) -> Tensor:
        return value.contiguous().view(-1).view(torch.uint8)

    return mine.dtype == other.dtype and mine.shape == other.shape and torch.equal(bits(mine), bits(other))


TRAININGS = {
    "transformer": Training(Blocks),
    "gpt": Training(lambda: GPT(GPTConfig(vocabulary=40, context=12, layers=2, heads=2, width=16))),
    "convolutions": Training(Convolutions, optimizer="SGD"),
    "lstm": Training(Recurrent),
    "autoencoder": Training(Autoencoder),
    "graph": Training(Graph),
    "experts": Training(Experts),
    "double_backward": Training(perceptron, gradient_penalty),
    "hooks": Training(perceptron, with_hooks, optimizer="SGD"),
    "checkpoint_reentrant": Training(lambda: Blocks(reentrant=True)),
    "checkpoint_not_reentrant": Training(lambda: Blocks(reentrant=False)),
    "lbfgs": Training(perceptron, optimizer="LBFGS"),
    "ddp": Training(perceptron, ranks="ddp"),
    "fsdp2": Training(perceptron, ranks="fsdp"),
}
