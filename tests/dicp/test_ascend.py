"""The backend `ascendgraph`: what is emitted is right by GE's prototypes, and gives what eager PyTorch gives when interpreted."""

from __future__ import annotations

import copy
import inspect
import json
import logging

import pytest
import torch

from dicp.errors import InvalidGraphError, UnsupportedError
from dicp.registry import find
from dicp.vendor.AscendGraph.check import check_graph, problems
from dicp.vendor.AscendGraph.operators import computes, known_operators
from dicp.vendor.AscendGraph.program import AscendProgram
from dicp.vendor.AscendGraph.prototypes import prototypes

pytestmark = pytest.mark.unit


@pytest.fixture
def interpreted(monkeypatch):
    """What is emitted is run by the interpreter, and nothing runs eagerly."""
    monkeypatch.setenv("DICP_EMITTED_RUN", "interpreter")
    monkeypatch.setenv("DICP_FALLBACK", "never")


@pytest.fixture
def programs(monkeypatch):
    """The programs that are emitted."""
    backend, found = find("ascendgraph"), []

    def emit(graph):
        found.append(type(backend).emit(backend, graph))
        return found[-1]

    monkeypatch.setattr(backend, "emit", emit)
    return found


def function(x, y):
    scores = torch.softmax(x @ y, -1) * 2 + 0.3
    return scores.transpose(0, 1).reshape(-1), torch.cat([x, x / 3], 1)[:, 1:3], (x > 0).sum(), x.view(-1)[2:]


def inputs(rows, between, columns):
    return torch.randn(rows, between), torch.randn(between, columns)


def types_of(program):
    return {node["op_type"] for node in program.graph["common_nodes"]}


def test_a_graph_is_emitted_checked_and_interpreted(interpreted, programs):
    given = inputs(4, 5, 6)
    torch.testing.assert_close(torch.compile(function, backend="ascendgraph")(*given), function(*given))
    [program] = programs
    assert {"MatMulV2", "SoftmaxV2", "Transpose", "ConcatD", "StridedSlice", "Greater"} <= types_of(program)
    assert not program.graph["has_dynamic_shape"] and not program.graph["build_options"]
    assert [node["dims"] for node in program.graph["data_nodes"]] == [[4, 5], [5, 6]]
    assert check_graph(program.graph) == len(program.graph["data_nodes"]) + len(program.graph["common_nodes"])


def test_one_graph_serves_all_sizes(interpreted, programs):
    compiled = torch.compile(function, backend="ascendgraph", dynamic=True)
    for sizes in ((4, 5, 6), (7, 3, 2), (9, 8, 3)):
        given = inputs(*sizes)
        torch.testing.assert_close(compiled(*given), function(*given))
    [program] = programs
    assert program.graph["has_dynamic_shape"]
    assert program.graph["data_nodes"][0]["dims"] == [-1, -1]
    assert [n["dims"] for n in program.graph["data_nodes"] if n["data_type"] == "INT64"] == [[1]] * 3
    options = {option["name"]: option["value"] for option in program.graph["build_options"]}
    first = program.graph["data_nodes"][0]["op_name"]
    assert options["input_shape"].startswith(f"{first}:-1,-1;")


def test_gradients_run_through_it(interpreted, programs):
    given = [x.requires_grad_() for x in inputs(4, 5, 6)]
    expected = torch.autograd.grad(function(*given)[0].square().sum(), given)
    result = torch.compile(function, backend="ascendgraph")(*given)[0]
    torch.testing.assert_close(torch.autograd.grad(result.square().sum(), given), expected)
    assert len(programs) == 2


def test_values_that_json_cannot_hold(interpreted):
    x = torch.tensor([0.5, -2.0, float("nan"), float("inf")])
    half = torch.tensor([0.5, -2.0], dtype=torch.bfloat16)

    def f(x, half):
        hidden = x.masked_fill(x < 0, float("-inf"))
        return hidden, torch.where(x > 9, float("nan"), x), half.clamp(min=-1.5) * 0.3, half > 0.1, x.bool()

    torch.testing.assert_close(
        torch.compile(f, backend="ascendgraph")(x, half), f(x, half), equal_nan=True, rtol=0, atol=0
    )


def test_what_ge_does_not_have_runs_eagerly(programs):
    x = torch.randn(4, dtype=torch.float64)
    assert torch.equal(torch.compile(lambda x: x * 2, backend="ascendgraph")(x), x * 2)
    assert not programs


def test_the_precision_check(monkeypatch, caplog):
    monkeypatch.setenv("DICP_ASCEND_PRECISION_CHECK", "1")
    given = inputs(4, 5, 6)
    with caplog.at_level(logging.INFO, "dicp"):
        torch.compile(function, backend="ascendgraph")(*given)
    assert "ascendgraph: precision check: all 4 outputs agree" in caplog.text


def test_operators_have_the_inputs_and_attributes_of_their_prototypes():
    assert len(known_operators()) > 80
    for name, operator in known_operators().items():
        if name == "Const":
            continue
        try:
            parameters = list(inspect.signature(operator.computation).parameters.values())
        except ValueError:  # a function of torch
            parameters = []
        given = [p for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        assert not given or len(given) == len(operator.prototype.inputs), name
        assert operator.integers <= {slot.name for slot in operator.prototype.inputs}, name
        attributes = {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        assert attributes.keys() == operator.prototype.attributes.keys(), name
        for attribute in operator.prototype.attributes.values():
            default = attributes[attribute.name].default
            if attribute.required or attribute.type == "Type":
                assert attribute.required == (default is inspect.Parameter.empty), (name, attribute)
            elif isinstance(attribute.default, list):
                assert list(default) == attribute.default, (name, attribute)
            else:
                assert default == attribute.default, (name, attribute)


def test_an_operator_without_a_prototype_cannot_be_declared():
    with pytest.raises(KeyError, match="NoSuchType"):
        computes("NoSuchType")(torch.abs)


@pytest.fixture
def emitted(interpreted, programs):
    torch.compile(function, backend="ascendgraph")(*inputs(4, 5, 6))
    return copy.deepcopy(programs[0].graph)


def node_of(graph, type_):
    return next(node for node in graph["common_nodes"] if node["op_type"] == type_)


def _wrong_type(graph):
    node_of(graph, "SoftmaxV2")["op_type"] = "SoftmaxV7"


def _wrong_input_name(graph):
    node_of(graph, "MatMulV2")["inputs"][0]["name"] = "x3"


def _missing_input(graph):
    node_of(graph, "MatMulV2")["inputs"].pop()


def _missing_attribute(graph):
    node_of(graph, "ConcatD")["attrs"] = []


def _unknown_attribute(graph):
    node_of(graph, "SoftmaxV2")["attrs"][0]["name"] = "axis"


def _attribute_of_another_type(graph):
    node_of(graph, "SoftmaxV2")["attrs"][0].update(value_type="int", value=1)


def _dtype_that_it_does_not_take(graph):
    graph["data_nodes"][0]["data_type"] = "BOOL"


def _later_node(graph):
    graph["common_nodes"].reverse()


def _wrong_output_name(graph):
    node_of(graph, "SoftmaxV2")["outputs"][0]["output_name"] = "z"


def _wrong_count(graph):
    node_of(graph, "ConcatD")["dynamic_inputs"][0]["num"] = 3


def _output_that_is_not_there(graph):
    graph["output_names"][0] = "nothing"


def _two_of_a_name(graph):
    graph["common_nodes"][1]["op_name"] = graph["common_nodes"][0]["op_name"]


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (_wrong_type, "none of the 1736 published types"),
        (_wrong_input_name, "there is no input x3"),
        (_missing_input, "it has no input x2"),
        (_missing_attribute, "its attribute concat_dim is missing"),
        (_unknown_attribute, "it has no attribute axis"),
        (_attribute_of_another_type, "attribute axes is a int, expected ListInt"),
        (_dtype_that_it_does_not_take, "input x1 is BOOL, expected one of"),
        (_later_node, "reads what is not there"),
        (_wrong_output_name, "there is no output z"),
        (_wrong_count, "3 are announced, 2 given"),
        (_output_that_is_not_there, "output nothing is no node"),
        (_two_of_a_name, "there are two nodes of the name"),
    ],
)
def test_mistakes_are_found(emitted, mistake, says):
    assert len(prototypes()) == 1736 and not list(problems(emitted))
    mistake(emitted)
    with pytest.raises(InvalidGraphError):
        check_graph(emitted)
    assert any(says in problem for problem in problems(emitted)), list(problems(emitted))


def test_the_interpreter_reads_the_json_alone(emitted):
    x, y = inputs(4, 5, 6)
    assert torch.equal(AscendProgram(json.dumps(emitted)).interpret([x, y])[2], (x > 0).sum())
    node_of(emitted, "Greater")["op_type"] = "Less"
    changed = AscendProgram(json.dumps(emitted))
    changed.check()
    assert torch.equal(changed.interpret([x, y])[2], (x < 0).sum())
    with pytest.raises(InvalidGraphError, match=r"is torch.float32 \[3, 5\], the graph says FLOAT \[4, 5\]"):
        changed.interpret([x[:3], y])


def test_refusals_name_the_operator_and_its_dtypes():
    conversions = find("ascendgraph").conversions
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3, dtype=torch.float64, device="meta")
    node = graph.call_function(torch.ops.aten.relu.default, (x,))
    node.meta["val"] = x.meta["val"]
    assert "GE graphs have no torch.float64" in conversions.refusal(node)
    with pytest.raises(UnsupportedError, match="no torch"):
        conversions(torch.fx.GraphModule(torch.nn.Module(), graph)).transform()
