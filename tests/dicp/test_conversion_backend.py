"""A backend of operators of its own: conversions, their types, patterns, generated code, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule

from dicp import registry
from dicp.dynamo_bridge.compile_fx import compile_fx
from dicp.dynamo_bridge.conversion import OperatorConversions, VendorOperator, register_conversion
from dicp.dynamo_bridge.graph import ConversionBackend, GraphTransformer
from dicp.errors import DicpError, InvalidGraphError, UnsupportedError
from dicp.passes.patterns import PatternRewrite

pytestmark = pytest.mark.unit
aten = torch.ops.aten


class Operator(VendorOperator):
    """An operator that is computed by a function of tensors, and typed by it too."""

    def __init__(self, name, function):
        self.name, self.infer = name, function

    def infer(self, *args):
        raise NotImplementedError


Add = Operator("Add", lambda x, y: x + y)
Mul = Operator("Mul", lambda x, y: x * y)
Maximum = Operator("Maximum", lambda x, y: torch.clamp(x, min=y))
MulAdd = Operator("MulAdd", lambda x, y, z: x * y + z)
OPERATORS = {operator.name: operator for operator in (Add, Mul, Maximum, MulAdd)}


class Conversions(OperatorConversions):
    @register_conversion(aten.add)
    def add(self, x, y, alpha=1):
        if alpha != 1:
            raise UnsupportedError(f"add with alpha={alpha}")
        return self.get_proxy(Add, (x, y))

    @register_conversion([aten.mul.Tensor, aten.mul.Scalar])
    def mul(self, x, y):
        return self.get_proxy(Mul, (x, y))

    @register_conversion(aten.relu.default)
    def relu(self, x):
        return self.get_proxy(Maximum, (x, 0))

    @register_conversion(aten.addcmul.default)
    def addcmul(self, x, y, z, value=1):
        product = self.get_proxy(Mul, (y, z))
        return self.get_proxy(Add, (x, self.get_proxy(Mul, (product, value))))


class Codegen:
    """A Python module that calls the operators by name."""

    def __init__(self, gm, cpu_gm, folder, graph_key):
        self.gm = gm

    def codegen(self):
        names = [node.name for node in self.gm.graph.find_nodes(op="placeholder")]
        lines = ["from test_conversion_backend import OPERATORS", "def call(arguments):"]
        lines += [f"    [{', '.join(names)}] = arguments", "    arguments.clear()"]
        for node in self.gm.graph.nodes:
            if node.op == "call_function":
                lines.append(
                    f"    {node.name} = OPERATORS[{node.target.name!r}]({', '.join(map(str, node.args))})"
                )
        lines.append(f"    return [{', '.join(str(node) for node in self.gm.graph.output_node().args[0])}]")
        return "\n".join(lines)


def search(x, y, z):
    return Add(Mul(x, y), z)


def replace(x, y, z):
    return MulAdd(x, y, z)


class NewBackend(ConversionBackend):
    name = "newgraph"
    conversions = Conversions
    patterns = (PatternRewrite("fuse mul and add", search, replace),)
    codegen = Codegen

    def __init__(self):
        self.graphs: list[GraphModule] = []

    def decompositions(self):
        return {}

    def opset_transform(self, gm):
        self.graphs.append(super().opset_transform(gm))
        return self.graphs[-1]


@pytest.fixture
def backend(monkeypatch):
    backend = NewBackend()
    monkeypatch.setitem(registry._REGISTERED, backend.name, backend)
    return backend


def compiled(function, **kwargs):
    def newgraph(gm, inputs):
        return compile_fx(gm, inputs, "newgraph")

    return torch.compile(function, backend=newgraph, **kwargs)


def names(gm):
    return [node.target.name for node in gm.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_operators_are_mapped_one_to_one_and_one_to_many(backend, dynamic):
    def f(x, y):
        return torch.addcmul(x, x, y, value=0.5) * torch.relu(y)

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    g = compiled(f, dynamic=dynamic)
    torch.testing.assert_close(g(x, y), f(x, y))
    assert names(backend.graphs[0]) == ["Mul", "Mul", "Add", "Maximum", "Mul"]
    if dynamic:
        x, y = torch.randn(7, 2), torch.randn(7, 2)
        torch.testing.assert_close(g(x, y), f(x, y))
        assert len(backend.graphs) == 1


def test_a_pattern_is_rewritten_and_its_types_follow(backend):
    f = compiled(lambda x, y: torch.relu(x * y + y))
    x, y = torch.randn(3, 4), torch.randn(4)
    assert torch.equal(f(x, y), torch.relu(x * y + y))
    graph = backend.graphs[0]
    assert names(graph) == ["MulAdd", "Maximum"]
    [fused] = [node for node in graph.graph.nodes if node.target is MulAdd]
    assert fused.meta["val"].shape == (3, 4) and fused.meta["val"].dtype == torch.float32


def test_a_conversion_that_refuses_a_call_leaves_it_to_eager(backend, monkeypatch):
    f = compiled(lambda x: torch.relu(torch.add(x, x, alpha=3) * 2))
    x = torch.randn(5)
    assert torch.equal(f(x), torch.relu(torch.add(x, x, alpha=3) * 2))
    assert names(backend.graphs[0]) == ["Mul", "Maximum"]
    monkeypatch.setenv("DICP_FALLBACK", "never")
    with pytest.raises(Exception, match="newgraph: add with alpha=2"):
        compiled(lambda x: torch.add(x, x, alpha=2))(x)


def test_the_parts_of_a_transformer(backend):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3, device="meta")
    y = graph.call_function(aten.relu.default, (x,))
    y.meta["val"] = torch.empty(3, device="meta")
    graph.output([y])
    transformer = GraphTransformer(GraphModule(torch.nn.Module(), graph), "newgraph")
    assert transformer.backend == "newgraph" and transformer.backend_codegen is Codegen
    other = GraphTransformer(transformer.cpu_gm, "newgraph")
    assert transformer.graph_key == other.graph_key and transformer.cpu_gm is not transformer.gm
    transformer.transform()
    assert names(transformer.gm) == ["Maximum"] and "OPERATORS['Maximum'](x, 0)" in transformer.codegen()
    assert transformer.compile_to_fn()([torch.tensor([-1.0, 0, 2])])[0].tolist() == [0, 0, 2]


def test_a_backend_without_conversions_has_no_transformer(small):
    with pytest.raises(DicpError, match="no conversions"):
        GraphTransformer(GraphModule(torch.nn.Module(), torch.fx.Graph()), "smallgraph")


def test_a_pattern_that_leaves_no_type_is_an_error(backend, monkeypatch):
    def broken(gm):
        for node in gm.graph.nodes:
            if node.op == "call_function":
                del node.meta["val"]
        return gm

    monkeypatch.setattr(NewBackend, "patterns", (broken,))
    monkeypatch.setenv("DICP_FALLBACK", "never")
    with pytest.raises(Exception, match=r"after the pass broken: .* has no type") as raised:
        compiled(lambda x: x * 2)(torch.randn(3))
    assert isinstance(raised.value.__cause__ or raised.value.inner_exception, InvalidGraphError)
