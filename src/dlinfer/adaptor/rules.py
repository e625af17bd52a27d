"""The rules. Each says one thing about one argument, or about one result, of one kernel.

An argument is named as the interface names it; a result is `result`, or `result0`, `result1` where there are several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """The kernel wants the dimensions in another order: `Layout("query", "TND->NTD")`.

    Letters are names of dimensions, each once, the same on both sides. A written argument is handed over as a view of the
    caller's memory, so what the kernel writes arrives. For a result the arrow says how the kernel's differs from what the
    interface promises, in the same direction.
    """

    argument: str
    order: str


@dataclass(frozen=True, slots=True)
class Cast:
    """The kernel wants another dtype, or returns another one (the result is then cast back to the interface's).

    For a result `dtype` is None: which dtype the interface promises is known. A written argument is copied back.
    """

    argument: str
    dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Contiguous:
    """The kernel needs contiguous memory; a written argument is copied back if it was not."""

    argument: str


@dataclass(frozen=True, slots=True)
class Rename:
    """The kernel calls the argument otherwise; it is then passed by keyword."""

    argument: str
    name: str


@dataclass(frozen=True, slots=True)
class Drop:
    """The kernel has no such argument. Calls where it is not `default` are refused, unless `ignored`."""

    argument: str
    default: Any = None
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """The kernel has one more argument, which is always the same; passed by keyword."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Fold:
    """The kernel does not take a factor: the tensor `into` is multiplied by it before the call.

    `Fold("softmax_scale", "query")` for a kernel that does not scale scores.
    """

    argument: str
    into: str


Rule = Layout | Cast | Contiguous | Rename | Drop | Constant | Fold
