"""The vocabulary of formulas: what every loop vendor can print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["Builder", "Value"]

Number = bool | int | float


@dataclass(frozen=True, slots=True)
class Value:
    """One element, computed once in a loop's body."""

    name: str
    dtype: torch.dtype
    """What it is computed in: float32 for bfloat16 and float16."""


class Builder(Protocol):
    """Appends instructions to a body."""

    def op(self, primitive: str, *operands: Value | Number, dtype: torch.dtype | None = None) -> Value:
        """The result of a primitive. Numbers take the dtype of the values beside them."""

    def constant(self, value: Number, dtype: torch.dtype) -> Value:
        """A number."""

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """Conversion as torch's `to` does it; to a 16-bit float: the value rounded, still held in float32."""
