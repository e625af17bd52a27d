"""What the corpus is made of: inputs of several regimes, and operators with their formulas and faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from verdict_arithmetic import Fault

Tensor = torch.Tensor
Formula = Callable[..., Any]
REGIMES = ("normal", "offset", "wide", "small")
# Far out: saturated functions, softmaxes of one winner, and overflow in float16.
ALL_REGIMES = (*REGIMES, "large")


class Draw:
    """Inputs of one regime: around zero, away from zero, over many magnitudes, small, large."""

    def __init__(self, seed: int, regime: str, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self._regime, self.dtype = regime, dtype

    def data(self, *shape: int) -> Tensor:
        x = torch.randn(*shape, generator=self.generator)
        if self._regime == "offset":
            x = x * 0.25 + 2
        elif self._regime == "wide":
            x = x.sign() * (1.5 * torch.randn(*shape, generator=self.generator)).exp()
        elif self._regime == "small":
            x = x * 2.0**-8
        elif self._regime == "large":
            x = x * 64
        return x.to(self.dtype)

    def weight(self, *shape: int) -> Tensor:
        """Parameters are of ordinary size whatever the data are."""
        scale = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 1.0
        return (torch.randn(*shape, generator=self.generator) * scale).to(self.dtype)

    def gain(self, *shape: int) -> Tensor:
        return (1 + 0.1 * torch.randn(*shape, generator=self.generator)).to(self.dtype)

    def positive(self, *shape: int) -> Tensor:
        return (self.data(*shape).float().abs() + 2.0**-10).to(self.dtype)

    def index(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator)

    def chances(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator).to(self.dtype)


@dataclass(frozen=True)
class Subject:
    """One operator: `formula` says what it computes, over a `How`, on float32 inputs."""

    name: str
    func: Callable[..., Any]
    make: Callable[[Draw], tuple[Any, ...]]
    formula: Formula
    faults: tuple[Fault, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    wants_grad: tuple[int, ...] | None = None  # judge these inputs' gradients instead of the output


SUBJECTS: list[Subject] = []
SUMS: tuple[Fault, ...] = ("dropped last block", "dropped last term", "half sums")
PRODUCTS: tuple[Fault, ...] = (*SUMS, "TF32 inputs")
NORMS: tuple[Fault, ...] = (
    "dropped last block", "dropped last term", "missing eps", "wrong eps", "misplaced eps", "biased variance",
    "counts one too few", "two roundings",
)  # fmt: skip


def subject(
    name: str,
    func: Callable[..., Any],
    make: Callable[[Draw], tuple[Any, ...]],
    *faults: Fault,
    grads: tuple[int, ...] | None = None,
    **kwargs: Any,
) -> Callable[[Formula], Formula]:
    """Adds an operator, and with `grads` one more for the gradients of those inputs."""

    def add(formula: Formula) -> Formula:
        SUBJECTS.append(Subject(name, func, make, formula, faults, kwargs))
        if grads is not None:
            SUBJECTS.append(Subject(f"{name} gradient", func, make, formula, faults, kwargs, grads))
        return formula

    return add
