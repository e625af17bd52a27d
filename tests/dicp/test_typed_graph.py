"""Typed graphs are printed, verified and saved; what is loaded is what was saved, and runs."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from graph_capture import captured
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule

from dicp.errors import DicpError, InvalidGraphError
from dicp.graph.inference import infer_types
from dicp.graph.serialize import load_graph, save_graph
from dicp.graph.text import graph_text
from dicp.graph.verify import verify_graph

pytestmark = pytest.mark.unit
aten = torch.ops.aten


def convolved(x, y):
    z = F.conv2d(x[None, None], y[:, None], padding=1)
    return (
        torch.cat([x.t(), x.t() * z.shape[1]]).view(-1),
        z,
        x[1:, ::2] + 1.5,
        torch.max(x, 0).values.to(torch.bfloat16),
    )


def attended(x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=True).softmax(-1)


def small_graph():
    with FakeTensorMode():
        x, y = torch.empty(3, 4), torch.empty(4)
    graph = Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    a.meta["val"], b.meta["val"] = x, y
    c = graph.call_function(aten.mul.Tensor, (a, b))
    d = graph.call_function(aten.permute.default, (c, [1, 0]))
    graph.output([d])
    gm = GraphModule(torch.nn.Module(), graph)
    infer_types(graph)
    return gm, c, d


def test_the_text_has_types():
    gm, _, _ = small_graph()
    assert graph_text(gm).splitlines() == [
        "input a: float32[3, 4]",
        "input b: float32[4]",
        "mul_tensor: float32[3, 4] = aten.mul.Tensor(a, b)",
        "permute_default: float32[4, 3] strides [1, 4] = aten.permute.default(mul_tensor, [1, 0])",
        "return [permute_default]",
    ]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("function", "shapes"), [(convolved, [(7, 9), (2, 3, 3)]), (attended, [(2, 3, 5, 8)])]
)
def test_graphs_are_saved_with_their_types(function, shapes, dynamic, tmp_path):
    args = [torch.randn(shape) for shape in shapes]
    [gm] = captured(function, *args, dynamic=dynamic)
    verify_graph(gm, "AOTAutograd", "types")
    save_graph(gm, tmp_path / "graph.pt")
    loaded = load_graph(tmp_path / "graph.pt")
    assert graph_text(loaded) == graph_text(gm)
    verify_graph(loaded, "loading", "types")
    placeholders = gm.graph.find_nodes(op="placeholder")
    given, tensors = [], iter(args)
    for node in placeholders:
        value = node.meta["val"]
        given.append(next(tensors) if isinstance(value, torch.Tensor) else int(value.node.hint))
    for one, other in zip(loaded(*given), gm(*given), strict=True):
        assert torch.equal(one, other)


def test_training_graphs_are_saved(tmp_path):
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.LayerNorm(6), torch.nn.GELU(), torch.nn.Dropout(0.3)
    )
    graphs = captured(model, torch.randn(5, 4), dynamic=True, backward=True)
    assert len(graphs) == 2
    for number, gm in enumerate(graphs):
        save_graph(gm, tmp_path / str(number))
        assert graph_text(load_graph(tmp_path / str(number))) == graph_text(gm)


def test_constants_are_saved(tmp_path):
    held = torch.tensor([1.0, 2.0, 3.0])
    [gm] = captured(lambda x: x * held + torch.tensor([4.0, 5.0, 6.0]), torch.randn(3))
    gm.graph.find_nodes(op="placeholder")[0].meta.update(constant=held, lifted=True)
    save_graph(gm, tmp_path / "graph.pt")
    loaded = load_graph(tmp_path / "graph.pt")
    assert torch.equal(loaded.graph.find_nodes(op="placeholder")[0].meta["constant"], held)


def test_what_cannot_be_saved_or_loaded_says_why(tmp_path):
    gm, c, _ = small_graph()
    c.target = lambda x, y: x * y
    with pytest.raises(DicpError, match="cannot be saved: it is not an operator"):
        save_graph(gm, tmp_path / "graph.pt")
    assert not list(tmp_path.iterdir())
    (tmp_path / "other").write_bytes(b"no graph")
    with pytest.raises(DicpError, match="is not a graph that dicp saved"):
        load_graph(tmp_path / "other")
    gm, _, _ = small_graph()
    save_graph(gm, tmp_path / "graph.pt")
    found = torch.load(tmp_path / "graph.pt", weights_only=True)
    torch.save(
        {**found, "graph": found["graph"].replace("aten.mul.Tensor", "aten.no_such.Tensor")},
        tmp_path / "graph.pt",
    )
    with pytest.raises(DicpError, match=r"calls aten.no_such.Tensor, which is not there"):
        load_graph(tmp_path / "graph.pt")


def break_order(gm, c, d):
    c.append(gm.graph.find_nodes(op="placeholder")[0])


def break_type(gm, c, d):
    del c.meta["val"]


def break_arguments(gm, c, d):
    c.args = (*c.args, 3)


def break_keyword(gm, c, d):
    c.kwargs = {"scale": 2}


def break_operand(gm, c, d):
    c.args = (c.args[0], "text")


def break_missing(gm, c, d):
    c.args = c.args[:1]


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (break_order, "was used before it has been defined"),
        (break_type, "has no type"),
        (break_arguments, "3 arguments, aten.mul.Tensor takes 2"),
        (break_keyword, "has no argument 'scale'"),
        (break_operand, "the argument 'other' of aten.mul.Tensor is a str"),
        (break_missing, "needs the argument 'other'"),
    ],
)
def test_broken_graphs_are_found_between_passes(break_it, message):
    gm, c, d = small_graph()
    verify_graph(gm, "nothing", "types")
    break_it(gm, c, d)
    with pytest.raises(InvalidGraphError, match="after the pass breaking: ") as raised:
        verify_graph(gm, "breaking", "rules")
    assert message in str(raised.value)
    verify_graph(gm, "breaking", "off")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: torch.empty(3, 5), r"sizes \[3, 5\] and \[3, 4\]"),
        (lambda: torch.empty(3, 4, dtype=torch.int32), "dtypes torch.int32 and torch.float32"),
        (lambda: torch.empty_strided((3, 4), (1, 3)), r"strides \[1, 3\] and \[4, 1\]"),
        (lambda: torch.empty(3, 4, 1), "dimensions 3 and 2"),
    ],
)
def test_wrong_types_are_found_where_types_are_checked(wrong, message):
    gm, c, _ = small_graph()
    with c.meta["val"].fake_mode:
        c.meta["val"] = wrong()
    verify_graph(gm, "breaking", "rules")
    with pytest.raises(InvalidGraphError, match=message):
        verify_graph(gm, "breaking", "types")


def test_types_follow_changed_inputs():
    gm, c, d = small_graph()
    with c.meta["val"].fake_mode:
        gm.graph.find_nodes(op="placeholder")[0].meta["val"] = torch.empty(7, 4, dtype=torch.bfloat16)
    assert infer_types(gm.graph) == [c, d]
    assert d.meta["val"].shape == (4, 7) and d.meta["val"].dtype == torch.float32
    assert infer_types(gm.graph) == []


def test_arithmetic_on_sizes_is_printed():
    [gm] = captured(lambda x: x.expand(x.shape[0] * 2, *x.shape).sum((0, 1)), torch.randn(3, 4), dynamic=True)
    assert operator.mul in {node.target for node in gm.graph.nodes} and "= operator.mul(" in graph_text(gm)
