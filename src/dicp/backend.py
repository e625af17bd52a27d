"""What a backend is: one object in its vendor folder, found by the entry point of its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

__all__ = ["Backend", "Runner"]

Runner = Callable[..., Sequence[Any]]
"""A compiled graph: called with the graph's inputs, gives its outputs, in order."""


class Backend(ABC):
    """Compiles graphs of ATen operators for one kind of device.

    Graphs come from AOTAutograd: functional but for `copy_` into inputs at the end, every node with a fake tensor in `meta["val"]`,
    sizes perhaps symbolic. A backend need not take all of a graph: what `supports` refuses runs eagerly between its parts.
    """

    name: ClassVar[str]
    """As in `torch.compile(backend=...)`."""
    keeps_format: ClassVar[bool] = True
    """Whether results have the strides that the fake tensors promise; else the bridge restores them."""

    def decompositions(self) -> Mapping[torch._ops.OperatorBase, Callable[..., Any]]:
        """Operators that AOTAutograd takes apart before the backend sees the graph."""
        return {}

    @abstractmethod
    def supports(self, node: Node) -> bool:
        """Whether the backend compiles this call."""

    def passes(self) -> Sequence[Callable[[GraphModule], GraphModule]]:
        """Rewrites of the whole graph before it is divided: patterns, data formats."""
        return ()

    @abstractmethod
    def compile(self, graph: GraphModule) -> Runner:
        """The runner of a graph that `supports` agreed to; CompileError or UnsupportedError: it runs eagerly instead."""
