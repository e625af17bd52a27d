"""What a case is, and how the samples of an operator are described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlinfer.conformance.drawing import Draw

SOURCE = "own"
HALVES = ("float32", "bfloat16", "float16")
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Samples:
    """The cases of one operator. Case n always has the same dtype, label and values, whatever else is run."""

    count: int
    labels: tuple[str, ...]
    build: Callable[[Draw, str], Arguments]
    """Arguments by name, for a label; tensors on the CPU, which may share memory and have any strides."""
    dtypes: tuple[str, ...] = HALVES
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
