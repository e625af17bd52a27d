"""The steps of the emitting vendors by their own names: a graph, its transformer, the module that is generated, its results."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from dicp.dynamo_bridge.graph import GraphTransformer
from dicp.vendor.AscendGraph.codegen.ascend import AscendCodegen
from dicp.vendor.AscendGraph.opset_convert import ascendgraph_opset_convert
from dicp.vendor.TopsGraph.codegen.enflame import EnflameCodegen
from dicp.vendor.TopsGraph.opset_transform import topsgraph_opset_transform

pytestmark = pytest.mark.unit

VENDORS = {
    "ascendgraph": (ascendgraph_opset_convert, AscendCodegen, "MatMulV2"),
    "topsgraph": (topsgraph_opset_transform, EnflameCodegen, "Dot"),
}


def graph_of(function, *inputs) -> GraphModule:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    output = gm.graph.output_node()
    output.args = ([output.args[0]],)
    gm.recompile()
    return gm


@pytest.mark.parametrize("backend", VENDORS)
def test_a_graph_goes_through_all_steps(backend, monkeypatch):
    transform, codegen, product = VENDORS[backend]
    x, y = torch.randn(3, 4), torch.randn(4, 5)

    def function(x, y):
        return torch.ops.aten.mm(x, y) * 2

    transformer = GraphTransformer(graph_of(function, x, y), backend)
    assert transformer.backend == backend and transformer.folder and transformer.graph_key
    assert transformer.backend_opset_transform is transform and transformer.backend_codegen is codegen
    transformer.transform()
    names = [node.target.name for node in transformer.gm.graph.nodes if node.op == "call_function"]
    assert product in names and "Mul" in names
    assert product in transformer.codegen()
    arguments = [x, y]
    [result] = transformer.compile_to_fn()(arguments)
    torch.testing.assert_close(result, function(x, y))
    assert not arguments
    [reference] = transformer.cpu_gm(x, y)
    torch.testing.assert_close(result, reference)
