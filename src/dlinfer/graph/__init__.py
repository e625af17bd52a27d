"""Graph mode: a decoding step as one graph for all batch sizes, run by a backend that is chosen by name.

    step = dlinfer.graph.compile(model, backend="eager")

The operators of `dlinfer.ops` stay in the graph as they are, each one opaque call that writes its caches in place. See
docs/graph.md.
"""

from __future__ import annotations

from dlinfer.errors import GraphError, UnknownBackendError
from dlinfer.graph.backends import Backend, register
from dlinfer.graph.capture import Captured, CompiledGraph, mark_fixed
from dlinfer.graph.capture import compile_graph as compile

__all__ = [
    "Backend",
    "Captured",
    "CompiledGraph",
    "GraphError",
    "UnknownBackendError",
    "compile",
    "mark_fixed",
    "register",
]
