"""The backend 'aten': the captured graph in ATen's operators, with dlinfer's among them, still written in place.

torch makes graphs functional on the way: a call that writes to a cache becomes one that copies the cache. `in_place` undoes
that before a compiler sees the graph, so that no cache is copied. A compiler of a chip builds on `lowered(compiler)`.
"""

from __future__ import annotations

from typing import Any

import torch

# Private, all of it and here only: torch has no public way to its functional graphs and to its pass that undoes copies.
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized
from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core
from torch.fx import GraphModule

from dlinfer.graph.backends import Backend, Compiler, Runner, run_graph


def in_place(graph: GraphModule) -> GraphModule:
    """Brings calls that write back into their form that writes in place; without copies where none is needed."""
    reinplace_inplaceable_ops_core(graph.graph)
    decompose_auto_functionalized(graph.graph)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if node.args[0] is node.args[1] and not node.users:
            graph.graph.erase_node(node)
    graph.graph.lint()
    graph.recompile()
    return graph


def lowered(compiler: Compiler) -> Compiler:
    """A backend that gives `compiler` the graph in ATen's operators, in place."""

    def forward(graph: GraphModule, inputs: list[Any]) -> Runner:
        return make_boxed_func(compiler(in_place(graph), inputs))

    return aot_autograd(fw_compiler=forward, keep_inference_input_mutations=True)


BACKEND = Backend("aten", lowered(run_graph))
