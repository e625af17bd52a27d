"""What is declared of an operator: how it may be called, with which sizes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from dicp.conformance.programs import CallArguments

__all__ = [
    "FLOATING",
    "GRIDS",
    "IMAGES",
    "OPERATORS",
    "SHAPES",
    "CallForm",
    "DrawnValues",
    "OperatorEntry",
    "Size",
    "operator",
]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Size:
    """A shape for static compilation, and one for dynamic: the dynamic ones of an operator have equal rank."""

    static: Shape
    dynamic: Shape


SHAPES = (Size((5,), (5, 3)), Size((3, 5), (6, 35)), Size((2, 3, 4), (2, 20)))
"""For operators that take any shape."""
GRIDS = (Size((4, 6), (4, 6)), Size((1, 33), (3, 33)), Size((7, 16), (7, 16)))
"""For operators that want two dimensions."""
IMAGES = (Size((2, 4, 8, 8), (2, 4, 8, 8)), Size((1, 4, 12, 10), (3, 4, 12, 10)))
"""Rows, channels, height, width."""
FLOATING = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class DrawnValues:
    """Draws the tensors of a call from a seed; without sizes a tensor has the shape of the case."""

    shape: Shape
    dtype: torch.dtype
    generator: torch.Generator

    def __call__(self, *args: Any, **kwargs: Any) -> CallArguments:
        """The arguments of the call."""
        return CallArguments(args, kwargs)

    def normal(self, *shape: int) -> Tensor:
        """Values around zero; whole ones for integers."""
        if self.dtype == torch.bool:
            return self.booleans(*shape)
        if not self.dtype.is_floating_point:
            low = 0 if self.dtype == torch.uint8 else -9
            return self.integers(low, 10, *shape, dtype=self.dtype)
        return torch.randn(shape or self.shape, generator=self.generator).to(self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        values = torch.rand(shape or self.shape, generator=self.generator)
        return values.mul_(high - low).add_(low).to(self.dtype)

    def positive(self, *shape: int) -> Tensor:
        if not self.dtype.is_floating_point:
            return self.integers(1, 10, *shape, dtype=self.dtype)
        return self.uniform(0.1, 3, *shape)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(low, high, shape or self.shape, generator=self.generator).to(dtype)

    def booleans(self, *shape: int) -> Tensor:
        return torch.rand(shape or self.shape, generator=self.generator) < 0.5

    def apart(self, *shape: int) -> Tensor:
        """Values none of which are equal, also in half dtypes while there are fewer than 200: what sorting must not confuse."""
        wanted = shape or self.shape
        count = int(torch.Size(wanted).numel())
        order = torch.randperm(count, generator=self.generator).reshape(wanted)
        return (order - count // 2).to(self.dtype)

    def size(self, *shape: int) -> torch.Size:
        """A size that is a parameter of what is compiled, as a model computes it from the shapes it sees."""
        return torch.Size(shape or self.shape)


@dataclass(frozen=True)
class CallForm:
    """One way to call an operator."""

    overload: OpOverload
    draw: Callable[[DrawnValues], CallArguments]
    sizes: tuple[Size, ...]
    dtypes: tuple[torch.dtype, ...]
    compares_values: bool = True

    def arguments(self, shape: Shape, dtype: torch.dtype, seed: int = 0) -> CallArguments:
        """Always the same for the same seed."""
        return self.draw(DrawnValues(shape, dtype, torch.Generator().manual_seed(seed)))


@dataclass
class OperatorEntry:
    """An operator and its forms of call; the file of its test bears its name."""

    name: str
    forms: list[CallForm] = field(default_factory=list)


OPERATORS: dict[str, OperatorEntry] = {}
"""All that are declared; `dicp.conformance.operators` fills it."""


def operator(
    overload: OpOverload,
    draw: Callable[[DrawnValues], CallArguments],
    sizes: Sequence[Size] = SHAPES,
    dtypes: Sequence[torch.dtype] = FLOATING,
    *,
    name: str | None = None,
    compares_values: bool = True,
) -> None:
    """Declares a form of call. Overloads of one operator share an entry, under the name of the packet."""
    key = name or overload._schema.name.partition("::")[2]
    entry = OPERATORS.setdefault(key, OperatorEntry(key))
    entry.forms.append(CallForm(overload, draw, tuple(sizes), tuple(dtypes), compares_values))
