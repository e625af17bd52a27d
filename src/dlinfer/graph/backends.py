"""Graph backends by name: who runs a captured graph.

A backend of this package, one that another package announces by an entry point of the group `dlinfer.graph_backends`
(its object is a `Backend`, or a function that takes a graph and its inputs as `torch.compile` calls it), or any backend
that torch knows, such as those of dicp. `DLINFER_GRAPH_BACKEND` names the one to use where the program does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import torch

from dlinfer.errors import GraphError, UnknownBackendError
from dlinfer.settings import GRAPH_BACKEND

GROUP = "dlinfer.graph_backends"
NO_GRAPH = "none"
"""In place of a backend: the program runs as it is."""

Runner = Callable[..., Any]
Compiler = Callable[[torch.fx.GraphModule, list[Any]], Runner]


@dataclass(frozen=True)
class Backend:
    """Makes a function of a captured graph; the function is then called with the graph's inputs."""

    name: str
    compiler: Compiler
    fixed_sizes: bool = False
    """It prepares each batch size by itself (records or specialises): callers should pad batches to a few sizes."""


def run_graph(graph: torch.fx.GraphModule, inputs: list[Any]) -> Runner:
    """The eager executor: one Python function with the calls of the operators and nothing else, no modules, hooks or branches.

    The operators run as they stand, so caches are written in place. Calling the module would go through its hooks every time.
    """
    graph.recompile()
    # torch writes the function when its text is first asked for; before that, `forward` is one that asks at every call.
    assert graph.code
    return graph.forward


# The other backends of this package: name, and where its `Backend` is. Modules are imported when they are asked for.
_OWN = {
    "aten": "dlinfer.graph.lowering",
    "cudagraphs": "dlinfer.graph.cuda_graphs",
}
_EAGER = Backend("eager", run_graph)
_REGISTERED: dict[str, Backend] = {}


def register(backend: Backend) -> None:
    """Adds a backend for this process; it comes before others of the same name."""
    if backend.name == NO_GRAPH:
        raise ValueError(f"a backend cannot be called {NO_GRAPH!r}: that name means no graph at all")
    _REGISTERED[backend.name] = backend


def chosen() -> str:
    """The name that DLINFER_GRAPH_BACKEND gives, or the default."""
    return str(GRAPH_BACKEND.get())


def find(name: str | None = None) -> Backend:
    """The backend of that name; without a name, that of DLINFER_GRAPH_BACKEND."""
    asked = name is not None
    name = chosen() if name is None else name
    found = _REGISTERED.get(name) or _find(name)
    if found is None:
        where = "backend" if asked else GRAPH_BACKEND.name
        known = ", ".join([NO_GRAPH, *names()])
        raise UnknownBackendError(f"{where} is {name!r}, which no package here provides. Use one of: {known}")
    return found


@cache
def _find(name: str) -> Backend | None:
    if name == _EAGER.name:
        return _EAGER
    if name in _OWN:
        return import_module(_OWN[name]).BACKEND
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _loaded(name, point.load)
    if name in torch.compiler.list_backends(exclude_tags=()):
        # Private module: torch lists its backends in public but looks them up here only.
        from torch._dynamo import lookup_backend

        return Backend(name, lookup_backend(name))
    return None


def _loaded(name: str, load: Callable[[], Any]) -> Backend:
    try:
        found = load()
    except Exception as error:
        raise GraphError(
            f"graph backend {name!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if isinstance(found, Backend):
        return found
    if callable(found):
        return Backend(name, found)
    raise GraphError(
        f"graph backend {name!r} is a {type(found).__name__}, expected a dlinfer.graph.Backend or a function (graph, inputs)"
    )


def names() -> list[str]:
    """The backends that can be asked for here, without those that torch has for its own tests and for debugging."""
    announced = [point.name for point in entry_points(group=GROUP)]
    return list(
        dict.fromkeys([_EAGER.name, *_OWN, *_REGISTERED, *announced, *torch.compiler.list_backends()])
    )
