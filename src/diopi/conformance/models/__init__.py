"""Small models of the kinds that users train: their training steps show which calls real programs make.

Only the structure matters: the layers, the loss and the optimizer of the model that gives its name, a few channels wide. A
builder gives a `Step`; the capture runs its loss, the backward and the optimizer once.

    @model("vgg16")
    def vgg16() -> Step: ...
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch


@dataclass
class Step:
    """A training step: the module and what computes its loss from seeded inputs."""

    module: torch.nn.Module
    loss: Callable[[], torch.Tensor]
    optimizer: str = "sgd"
    """sgd, adamw, or adamw_fused"""


Builder = Callable[[], Step]
_builders: dict[str, Builder] = {}


def model(name: str) -> Callable[[Builder], Builder]:
    """Registers a builder under the name that users know."""

    def register(builder: Builder) -> Builder:
        _builders[name] = builder
        return builder

    return register


@cache
def load() -> dict[str, Builder]:
    """Name -> builder, of all modules of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _builders


def classified(module: torch.nn.Module, side: int, *, classes: int = 10, batch: int = 2) -> Step:
    """The step of an image classifier."""
    images = torch.randn(batch, 3, side, side)
    labels = torch.randint(0, classes, (batch,))
    return Step(module, lambda: torch.nn.functional.cross_entropy(module(images), labels))
