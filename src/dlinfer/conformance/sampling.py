"""What a case is, how the samples of an operator are described, and how values are drawn: the same on every machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from zlib import crc32

import torch
from torch import Tensor

SOURCE = "own"
FLOAT_DTYPES = ("float32", "bfloat16", "float16")
Arguments = dict[str, Any]
_T = TypeVar("_T")


class Draw:
    """Random choices and tensors of one case."""

    def __init__(self, name: str, seed: int, dtype: str) -> None:
        number = crc32(f"{name}:{seed}".encode())
        self._choices = random.Random(number)
        self._values = torch.Generator().manual_seed(number)
        self.dtype: torch.dtype = getattr(torch, dtype)

    def choice(self, values: Sequence[_T]) -> _T:
        """One of some values."""
        return self._choices.choice(values)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Normal numbers, rounded to the dtype of the case or to another."""
        value = torch.randn(shape, generator=self._values) * scale
        return value.to(self.dtype if dtype is None else dtype)

    def uniform(
        self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Numbers between two bounds."""
        return (torch.rand(shape, generator=self._values) * (high - low) + low).to(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Whole numbers from low to high - 1."""
        return torch.randint(low, high, shape, generator=self._values).to(dtype)

    def permutation(self, count: int) -> Tensor:
        """The numbers below `count` in some order."""
        return torch.randperm(count, generator=self._values)

    def index_dtype(self) -> torch.dtype:
        """int32 or int64."""
        return self.choice((torch.int32, torch.int64))

    def spaced(self, value: Tensor) -> Tensor:
        """The same values with gaps between rows, which belong to somebody else."""
        gap = self.choice((1, 3, 8))
        whole = torch.full([*value.shape[:-1], value.shape[-1] + gap], 7, dtype=value.dtype)
        whole[..., : value.shape[-1]] = value
        return whole[..., : value.shape[-1]]


def empty_output(*shape: int, dtype: torch.dtype) -> Tensor:
    """Memory for a result, in which anything that is left unwritten is seen."""
    return torch.full(shape, torch.nan, dtype=dtype)


@dataclass(frozen=True)
class Samples:
    """The cases of one operator. Case n always has the same dtype, label and values, whatever else is run."""

    count: int
    labels: tuple[str, ...]
    build: Callable[[Draw, str], Arguments]
    """Arguments by name, for a label; tensors on the CPU, which may share memory and have any strides."""
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    host: tuple[str, ...] = ()
    """Arguments that may stay on the CPU when the case runs on a device; every other case keeps them there."""

    def described(self, number: int) -> tuple[str, str]:
        """(dtype, label): dtypes change fastest, then labels."""
        dtype = self.dtypes[number % len(self.dtypes)]
        return dtype, self.labels[number // len(self.dtypes) % len(self.labels)]


@dataclass(frozen=True)
class Case:
    """One call of one operator."""

    id: str
    operator: str
    dtype: str
    label: str
    arguments: Arguments
    host: frozenset[str] = field(default=frozenset())
    """Tensors that stay on the CPU."""
    refuses: str = ""
    """The argument that is wrong; the call must be refused with an error that names it."""
