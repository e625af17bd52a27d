"""What a backend is: one object in its vendor folder, found by the entry point of its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from dicore.settings import Variable

__all__ = ["Backend", "Runner"]

Runner = Callable[..., Sequence[Any]]
"""A compiled graph: called with the graph's inputs, gives its outputs, in order.

One with a true attribute `_boxed_call`, as torch has it, is called with one list of them instead, which it may empty.
"""


class Backend(ABC):
    """Compiles graphs of ATen operators for one kind of device.

    Graphs come from AOTAutograd by way of the bridge: functional but for `copy_` into inputs, every node with a fake tensor
    (or a tuple of them) in `meta["val"]`. A backend need not take all of a graph: what `supports` refuses runs eagerly between
    its parts.

    The graphs that `compile` gets are simpler than those of AOTAutograd:
    - Sizes may be symbolic. For each symbol that occurs anywhere there is an input whose `meta["val"]` is just that symbol, a
      SymInt; at the call it is an int. Nodes whose value is a SymInt (`operator.mul(s0, 4)`) stand where arguments need them;
      the expression in their `meta["val"]` says all.
    - Outputs are tensors that nodes of the graph compute (perhaps views), each once; never inputs, numbers or None.
    - There is no `get_attr`: constants are inputs. An input with `meta["constant"]` gets that very tensor at every call: frozen
      weights and constants of the program. Its value may be used, and packed, while compiling.
    - `graph.meta["options"]` has the checked options of `torch.compile`.
    """

    name: ClassVar[str]
    """As in `torch.compile(backend=...)`."""
    keeps_format: ClassVar[bool] = True
    """Whether results have the strides that the fake tensors promise; else the bridge restores them."""
    options: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """What `torch.compile(options={...})` may say besides `freezing`: the reader of each value, which raises ValueError."""

    settings: ClassVar[Sequence[Variable]] = ()
    """The environment variables of this backend alone, for `dicp doctor`."""

    def decompositions(self) -> Mapping[torch._ops.OperatorBase, Callable[..., Any]]:
        """Operators that AOTAutograd takes apart before the backend sees the graph, and how: all of them.

        Without an override: the standard ones of `dicp.dynamo_bridge.decompositions`. A backend adds its own by
        `{**super().decompositions(), ...}`, keeps an operator whole by leaving it out, or gives a table of its own.
        """
        from dicp.dynamo_bridge.decompositions import standard_decompositions

        return standard_decompositions()

    @abstractmethod
    def supports(self, node: Node) -> bool:
        """Whether the backend compiles this call. The bridge asks for calls of operators that give tensors only."""

    def refusal(self, node: Node) -> str:
        """Why `supports` refused a call, for the user."""
        return f"{self.name} does not compile {node.target}"

    def worth_compiling(self, nodes: Sequence[Node]) -> bool:
        """Whether a part of a graph is worth a compiled function of its own; else it runs eagerly."""
        return True

    def passes(self) -> Sequence[Callable[[GraphModule], GraphModule]]:
        """Rewrites of the whole graph before it is divided: patterns, data formats."""
        return ()

    @abstractmethod
    def compile(self, graph: GraphModule) -> Runner:
        """The runner of a graph that `supports` agreed to; CompileError or UnsupportedError: it runs eagerly instead."""

    def artifacts(self, graph: GraphModule) -> Mapping[str, str]:
        """What `compile` made of a graph, as names of files and their texts: IR, generated code, the compiler's command and log.

        `compile` leaves them in `graph.meta["artifacts"]`. They are shown by `dicp explain` and kept in DICP_DUMP_DIR. It may
        also leave in `graph.meta["kernels"]` which kernel a node is fused into, by the node's name: for the drawing.
        """
        artifacts: Mapping[str, str] = graph.meta.get("artifacts", {})
        return artifacts

    def doctor(self) -> Mapping[str, str]:
        """Facts for `dicp doctor`: name and value; a value that begins with `problem:` is one."""
        return {}
