"""What a backend emits for a vendor's compiler, and what can be done with it without that compiler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["EmittedProgram", "MissingSdkError"]


class MissingSdkError(Exception):
    """The vendor's SDK is not installed; the text says what was looked for."""


class EmittedProgram(ABC):
    """A graph in the language of a vendor's compiler."""

    @abstractmethod
    def texts(self) -> Mapping[str, str]:
        """What was emitted, as names of files and their texts: kept in DICP_DUMP_DIR, shown by `dicp explain`."""

    @abstractmethod
    def check(self) -> None:
        """Holds it against what the vendor published. Raises InvalidGraphError, which names the operator at fault."""

    @abstractmethod
    def interpret(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs, computed on the CPU from what was emitted alone; inputs are those of the graph, ints for symbols."""
