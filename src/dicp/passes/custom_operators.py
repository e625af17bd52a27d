"""Custom operators that write to their arguments: back in the form that writes in place.

AOTAutograd makes graphs functional: a call that writes to a cache becomes one that copies the cache first. No backend compiles
such calls, so they run eagerly, as they are, and their caches are not copied.
"""

from __future__ import annotations

import torch

# Private, and here only: torch has no public form of its passes that undo the copies.
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch.fx import GraphModule

__all__ = ["custom_operators_in_place"]


def custom_operators_in_place(gm: GraphModule) -> GraphModule:
    """Undoes the functional form of custom operators; copies only what something else still reads."""
    graph = gm.graph
    if not any(
        graph.find_nodes(op="call_function", target=t) for t in (auto_functionalized, auto_functionalized_v2)
    ):
        return gm
    from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized
    from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core

    reinplace_inplaceable_ops_core(graph)
    decompose_auto_functionalized(graph)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if node.args[0] is node.args[1] and not node.users:
            graph.erase_node(node)
    gm.recompile()
    return gm
