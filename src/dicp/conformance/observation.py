"""Sees what a backend does while a function is compiled and called: which operators it takes, refuses, and really runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from torch.fx import GraphModule, Node

from dicp.backend import Backend, Runner
from dicp.errors import UnsupportedError
from dicp.settings import EMITTED_RUN, FALLBACK

__all__ = ["Observations", "observed"]


@dataclass
class Observations:
    """What happened since the last `clear`."""

    refused: dict[str, str] = field(default_factory=dict)
    """Operators that ran eagerly, and why."""
    compiled: Counter[str] = field(default_factory=Counter)
    """Operators that the backend made runners of."""
    compilations: int = 0
    calls: int = 0
    """Of compiled runners."""

    def clear(self) -> None:
        self.refused.clear()
        self.compiled.clear()
        self.compilations = self.calls = 0


@contextmanager
def observed(backend: Backend) -> Iterator[Observations]:
    """Observes a backend of this process. Meanwhile it compiles every part it can, and an error of its compiler is an error."""
    seen = Observations()
    replaced = {
        "supports": _supports(backend, seen),
        "compile": _compile(backend, seen),
        "worth_compiling": _always,
    }
    with ExitStack() as stack:
        for name, function in replaced.items():
            stack.enter_context(mock.patch.object(backend, name, function))
        # What a backend of emitted programs emits is interpreted, unless the user wants the vendor's compiler.
        settings = {FALLBACK.name: "unsupported", EMITTED_RUN.name: EMITTED_RUN.text() or "interpreter"}
        stack.enter_context(mock.patch.dict("os.environ", settings))
        yield seen


def _always(nodes: Sequence[Node]) -> bool:
    return True


def _supports(backend: Backend, seen: Observations) -> Callable[[Node], bool]:
    supports, refusal = backend.supports, backend.refusal

    def supports_observed(node: Node) -> bool:
        taken = supports(node)
        if not taken:
            seen.refused.setdefault(str(node.target), refusal(node))
        return taken

    return supports_observed


def _compile(backend: Backend, seen: Observations) -> Callable[[GraphModule], Runner]:
    compile_graph = backend.compile

    def compile_observed(graph: GraphModule) -> Runner:
        # Listed before: a backend may rewrite the graph that it is given.
        operators = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        try:
            runner = compile_graph(graph)
        except UnsupportedError as error:
            for operator in operators:
                seen.refused.setdefault(operator, str(error))
            raise
        seen.compilations += 1
        seen.compiled.update(operators)
        return _counted(runner, seen)

    return compile_observed


def _counted(runner: Runner, seen: Observations) -> Runner:
    def call(*arguments: Any) -> Sequence[Any]:
        seen.calls += 1
        return runner(*arguments)

    call._boxed_call = getattr(runner, "_boxed_call", False)  # type: ignore[attr-defined]
    return call
