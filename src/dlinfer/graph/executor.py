"""The eager executor: runs the operators of a captured graph one after the other.

What remains of the program is one Python function with the calls and nothing else: no modules, no hooks, no branches. The
operators run as they stand, so caches are written in place.
"""

from __future__ import annotations

from typing import Any

import torch

from dlinfer.graph.backends import Backend, Runner


def run_graph(graph: torch.fx.GraphModule, inputs: list[Any]) -> Runner:
    """The generated function itself: calling the module would go through its hooks every time."""
    graph.recompile()
    # torch writes the function when its text is first asked for; before that, `forward` is one that asks at every call.
    assert graph.code
    return graph.forward


BACKEND = Backend("eager", run_graph)
