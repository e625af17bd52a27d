"""From a graph of ATen's operators to one of GE's."""

from __future__ import annotations

from torch.fx import GraphModule

from dicp.dynamo_bridge.compiled_graph import dead_code_removed
from dicp.passes.pipeline import run_passes
from dicp.vendor.AscendGraph.conversion import AscendConversions

__all__ = ["ascendgraph_opset_convert"]


def ascendgraph_opset_convert(gm: GraphModule) -> GraphModule:
    """Every operator converted; what nobody reads is gone. Raises UnsupportedError."""
    return run_passes(gm, (conversion, dead_code_removed))


def conversion(gm: GraphModule) -> GraphModule:
    return AscendConversions(gm).transform()
