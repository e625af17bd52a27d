"""Passes in order: each rewrites the graph, and what it gives is verified under its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from torch.fx import GraphModule

from dicp.graph.verify import verify_graph

__all__ = ["GraphPass", "pass_name", "run_passes"]

GraphPass = Callable[[GraphModule], GraphModule]


def pass_name(graph_pass: Any) -> str:
    """The name under which a pass is shown: that of the function, or of the object."""
    return str(getattr(graph_pass, "__name__", type(graph_pass).__name__)).strip("_")


def run_passes(
    gm: GraphModule,
    passes: Iterable[GraphPass],
    observe: Callable[[str, GraphModule, float], None] | None = None,
) -> GraphModule:
    """The graph after all passes; `observe` is called after each with its name, the graph and the seconds it took."""
    for graph_pass in passes:
        start = time.perf_counter()
        gm = graph_pass(gm)
        seconds = time.perf_counter() - start
        verify_graph(gm, pass_name(graph_pass))
        if observe is not None:
            observe(pass_name(graph_pass), gm, seconds)
    return gm
