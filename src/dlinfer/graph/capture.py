"""Captures a function as one graph for all batch sizes, and hands the graph to a backend.

torch.compile does the capturing, with settings that a decoding step needs and that torch has off by default: see `_Capturing`
and `_guards`. A function that cannot be one graph is refused with the line of its source.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.fx.experimental._config as symbols
from torch import Tensor
from torch._dynamo import config as capturing
from torch._dynamo import mark_static, mark_static_address, reset_code

from dlinfer.errors import GraphError
from dlinfer.graph import backends
from dlinfer.graph.backends import Backend, Runner
from dlinfer.graph.explaining import CAPTURE_ERRORS, WITHOUT, changes, explained, kinds_of, name_of
from dlinfer.graph.writes import written_inputs

# Private names above: the settings of symbols have no public ones, nor have marks on tensors and forgetting a graph.

MAX_GRAPHS = 4
# torch keeps eight of a function and then fails with words of its own.
_MOST = 7
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Captured:
    """One graph that was captured."""

    graph: torch.fx.GraphModule
    writes: frozenset[str]
    """The names of inputs that it writes to."""
    kinds: dict[str, str]
    """What the arguments were that it was captured with."""
    seconds: float
    """What the backend took to prepare it."""

    @property
    def operators(self) -> list[str]:
        """Names of the dlinfer operators in it, in order."""
        targets = (node.target for node in self.graph.graph.nodes if node.op == "call_function")
        return [
            target._schema.name.partition("::")[2]
            for target in targets
            if isinstance(target, torch._ops.OpOverload) and target.namespace == "dlinfer"
        ]


class CompiledGraph:
    """A function or module that runs as one graph. Call it like the original; results carry no gradients.

    Weights may change in place. After layers, hooks or settings of a module were changed, call `reset`.
    Without a backend (`none`) the target itself runs.
    """

    def __init__(self, target: Callable[..., Any], backend: Backend | None, max_graphs: int) -> None:
        self.target = target
        self.backend = backend
        self.max_graphs = max_graphs
        self.graphs: list[Captured] = []
        """What was captured so far: one graph, or more if kinds of arguments changed (dtypes, None for a tensor ...)."""
        self._entry: FunctionType | None = None
        self._compiled: Callable[..., Any] | None = None
        self._given: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the graph; the first call captures it."""
        if self.backend is None:
            with torch.no_grad():
                return self.target(*args, **kwargs)
        compiled = self._compiled or self._prepare(self.backend)
        self._given = args, kwargs
        try:
            with torch.no_grad(), _Capturing():
                return compiled(*args, **kwargs)
        except CAPTURE_ERRORS as error:
            raise explained(error, self.target, self.backend.name, args, kwargs) from error
        finally:
            self._given = (), {}

    def reset(self) -> None:
        """Forgets all graphs; the next call captures again."""
        if self._entry is not None:
            reset_code(self._entry.__code__)
        self._entry = self._compiled = None
        self.graphs.clear()

    def _prepare(self, backend: Backend) -> Callable[..., Any]:
        # torch keeps graphs with the code of a function. Code of its own keeps those of two targets separate, also where both
        # are objects of one class.
        self._entry = _entry(self.target)
        self._compiled = torch.compile(
            self._entry,
            fullgraph=True,
            dynamic=True,
            backend=partial(self._hand_over, backend),
            options={"guard_filter_fn": _guards},
        )
        return self._compiled

    def _hand_over(self, backend: Backend, graph: torch.fx.GraphModule, inputs: list[Any]) -> Runner:
        kinds = kinds_of(*self._given)
        if self.graphs:
            self._note_another(changes(self.graphs[-1].kinds, kinds))
        placeholders = graph.graph.find_nodes(op="placeholder")
        writes = frozenset(placeholders[index].name for index in written_inputs(graph))
        start = time.perf_counter()
        runner = backend.compiler(graph, inputs)
        self.graphs.append(Captured(graph, writes, kinds, time.perf_counter() - start))
        return runner

    def _note_another(self, changed: str) -> None:
        name = name_of(self.target)
        if len(self.graphs) >= self.max_graphs:
            raise GraphError(
                f"{name} needs more than {self.max_graphs} graphs, for arguments change in a way that no graph covers:"
                f" {changed}. Keep them equal, raise max_graphs, or: {WITHOUT}"
            )
        _LOG.warning("dlinfer.graph: another graph (%d) of %s: %s", len(self.graphs) + 1, name, changed)


def compile_graph(
    target: Callable[..., Any], backend: str | Backend | None = None, *, max_graphs: int = MAX_GRAPHS
) -> CompiledGraph:
    """`target` as one graph that serves all batch sizes and lengths, run by a backend.

    `backend`: a name (see `dlinfer.graph.backends.names()`) or a `Backend`; without it DLINFER_GRAPH_BACKEND, or 'eager'.
    'none' runs `target` without a graph. `max_graphs`: other kinds of arguments (a dtype, None for a tensor) need a graph of
    their own; more than this many is an error, for a graph at every call would be slower than none.
    """
    if not callable(target):
        raise TypeError(
            f"dlinfer.graph.compile: target is a {type(target).__name__}, expected a function or module"
        )
    if not 1 <= max_graphs <= _MOST:
        raise ValueError(f"dlinfer.graph.compile: max_graphs is {max_graphs}, expected 1 to {_MOST}")
    if isinstance(backend, Backend):
        return CompiledGraph(target, backend, max_graphs)
    if (backends.chosen() if backend is None else backend) == backends.NO_GRAPH:
        return CompiledGraph(target, None, max_graphs)
    return CompiledGraph(target, backends.find(backend), max_graphs)


def mark_fixed(tensors: Iterable[Tensor]) -> None:
    """Says that tensors keep their shape and address, as caches do: graphs then have numbers for their sizes.

    Capturing is faster, and every call: torch does not ask for each size of each cache.
    """
    for tensor in tensors:
        mark_static(tensor)
        mark_static_address(tensor, guard=False)


def _entry(target: Callable[..., Any]) -> FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return FunctionType(
        call.__code__.replace(co_name=f"graph_of_{type(target).__name__}"),
        call.__globals__,
        closure=call.__closure__,
    )


class _Capturing:
    """Settings of torch while a graph may be captured.

    - use_duck_shape off: torch takes two sizes that are equal at first for one. A batch of 9 and 9 heads are not.
    - backed_size_oblivious on: torch makes graphs of their own for sizes 0 and 1. A batch of 1 runs in the same graph.
    - specialize_float on: torch makes an input of every float. Those of a model (epsilons, scales) never change.

    Set around every call, for any call may capture; torch's own `patch` of settings takes five times as long.
    """

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = symbols.use_duck_shape, symbols.backed_size_oblivious, capturing.specialize_float
        symbols.use_duck_shape, symbols.backed_size_oblivious, capturing.specialize_float = False, True, True

    def __exit__(self, *error: object) -> None:
        symbols.use_duck_shape, symbols.backed_size_oblivious, capturing.specialize_float = self.before


def _guards(entries: Sequence[Any]) -> Sequence[bool]:
    """What is asked at every call: only arguments, sizes and modes of torch.

    Modules and global names stay as they were captured (`CompiledGraph.reset` says otherwise). Asking for every layer would
    take longer than many steps on a fast device.
    """
    modules = torch.compiler.skip_guard_on_all_nn_modules_unsafe(entries)
    names = torch.compiler.skip_guard_on_globals_unsafe(entries)
    return [one and other for one, other in zip(modules, names, strict=True)]
