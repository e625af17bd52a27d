"""From a graph of ATen's operators to one of the builder's."""

from __future__ import annotations

from torch.fx import GraphModule

from dicp.dynamo_bridge.compiled_graph import dead_code_removed
from dicp.errors import UnsupportedError
from dicp.passes.pipeline import run_passes
from dicp.vendor.TopsGraph.conversion import TopsConversions
from dicp.vendor.TopsGraph.fixed_sizes import symbol_inputs

__all__ = ["topsgraph_opset_transform"]


def topsgraph_opset_transform(gm: GraphModule) -> GraphModule:
    """Every operator converted; what nobody reads is gone. The builder has no symbols. Raises UnsupportedError."""
    if symbol_inputs(gm):
        raise UnsupportedError("the builder has no symbolic sizes: bring the graph to fixed sizes before")
    return run_passes(gm, (conversion, dead_code_removed))


def conversion(gm: GraphModule) -> GraphModule:
    return TopsConversions(gm).transform()
