"""From torch.compile to a backend and back: inference, training, steps, dynamic sizes."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from dicp_small_backend import SmallBackend
from torch.fx import Interpreter

from dicp.errors import CompileError, OptionError

pytestmark = pytest.mark.unit
aten = torch.ops.aten


def targets(graph) -> list[object]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_one_graph_is_compiled_whole(compiled, small):
    x, y = torch.randn(3, 4), torch.randn(4)
    f = compiled(lambda x, y: F.relu(x * y) + x)
    assert torch.equal(f(x, y), F.relu(x * y) + x)
    assert torch.equal(f(y, x), F.relu(y * x) + y)
    assert [targets(g) for g in small.graphs[:1]] == [[aten.mul.Tensor, aten.relu.default, aten.add.Tensor]]
    assert small.calls == 2


def test_what_is_not_supported_runs_between_compiled_steps(compiled, small):
    def f(x):
        a = x * 2 + 1
        return torch.sin(a) * a, torch.cumsum(x, 0)

    x = torch.randn(5, 3)
    for result, expected in zip(compiled(f)(x), f(x), strict=True):
        assert torch.equal(result, expected)
    assert [len(targets(g)) for g in small.graphs] == [2, 1]
    assert small.calls == 2


def test_gradients(compiled, small):
    x = torch.randn(6, 3, requires_grad=True)
    y = torch.randn(6, 3, requires_grad=True)
    z, w = (t.detach().clone().requires_grad_() for t in (x, y))

    def f(x, y):
        return (F.relu(x * y) + torch.sin(x)).sum()

    f(x, y).backward()
    compiled(f)(z, w).backward()
    assert torch.equal(z.grad, x.grad) and torch.equal(w.grad, y.grad)
    assert len(small.graphs) >= 2


def test_dynamic_sizes_compile_once(compiled, small):
    def f(x):
        return (x * x.shape[0] + x.view(x.shape[1], -1).transpose(0, 1).reshape(x.shape)) * 2

    g = compiled(f, dynamic=True)
    for shape in ((3, 4), (7, 5), (2, 9)):
        x = torch.randn(shape)
        assert torch.equal(g(x), f(x))
    assert len(small.graphs) == 1
    placeholders = [n.meta["val"] for n in small.graphs[0].graph.find_nodes(op="placeholder")]
    symbols = {str(v) for v in placeholders if isinstance(v, torch.SymInt)}
    sizes = {
        str(s)
        for n in small.graphs[0].graph.nodes
        if n.op != "output"
        for v in [n.meta["val"]]
        if isinstance(v, torch.Tensor)
        for s in v.shape
        if isinstance(s, torch.SymInt)
    }
    assert sizes <= symbols


def test_mutation_of_an_input(compiled):
    def f(x, y):
        x.mul_(2)
        y[0] = 3
        return x + y

    pair = torch.randn(4), torch.randn(4)
    other = tuple(t.clone() for t in pair)
    assert torch.equal(compiled(f)(*pair), f(*other))
    assert torch.equal(pair[0], other[0]) and torch.equal(pair[1], other[1])


def test_constants_of_the_program_are_inputs(compiled, small):
    held = torch.tensor([1.0, 2.0, 3.0])

    def f(x):
        return x * held + torch.tensor([4.0, 5.0, 6.0]) * x

    x = torch.randn(3)
    assert torch.equal(compiled(f)(x), f(x))
    assert all(n.op != "get_attr" for g in small.graphs for n in g.graph.nodes)


@pytest.mark.parametrize("error", [CompileError("no compiler"), ZeroDivisionError("a bug")])
def test_a_failing_compiler_is_said_once(compiled, small, monkeypatch, caplog, error):
    def fail(graph):
        raise error

    monkeypatch.setattr(small, "compile", fail)
    x = torch.randn(4)
    with caplog.at_level(logging.WARNING, "dicp"):
        assert torch.equal(compiled(lambda x: x * 2)(x), x * 2)
        assert torch.equal(compiled(lambda x: x * 3 + 1)(x), x * 3 + 1)
    assert len(caplog.records) == 1 and str(error) in caplog.text


def test_fallback_can_be_forbidden(compiled, small, monkeypatch):
    monkeypatch.setenv("DICP_FALLBACK", "never")
    with pytest.raises(Exception, match=r"smallgraph does not compile aten.sin.default"):
        compiled(lambda x: torch.sin(x) * 2)(torch.randn(3))
    monkeypatch.setattr(small, "compile", lambda graph: (_ for _ in ()).throw(CompileError("no compiler")))
    monkeypatch.setenv("DICP_FALLBACK", "unsupported")
    with pytest.raises(Exception, match="no compiler"):
        compiled(lambda x: x * 2)(torch.randn(3))


def test_options_are_checked(compiled):
    with pytest.raises(Exception, match="freezing") as raised:
        compiled(lambda x: x + 1, options={"freezin": True})(torch.ones(2))
    assert isinstance(raised.value.__cause__ or raised.value.inner_exception, OptionError)
    with pytest.raises(Exception, match="has no modes"):
        compiled(lambda x: x + 1, mode="max-autotune")(torch.ones(2))


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x):
        return x * self.weight + self.shift


def test_frozen_weights_are_constants(compiled, small):
    model = Linear()
    f = compiled(model, options={"freezing": True})
    x = torch.randn(3, 4)
    with torch.no_grad():
        assert torch.equal(f(x), model(x))
        constants = [n for n in small.graphs[-1].graph.find_nodes(op="placeholder") if "constant" in n.meta]
        assert len(constants) == 2
        assert {n.meta["constant"].data_ptr() for n in constants} == {
            model.weight.data_ptr(),
            model.shift.data_ptr(),
        }
        model.weight.mul_(2)
        assert torch.equal(f(x), model(x))
        model.weight.data = torch.ones(4)
        assert torch.equal(f(x), model(x))
        assert len(small.graphs) == 3
    assert torch.equal(f(x), model(x))  # with gradients nothing is frozen
    assert not any("constant" in n.meta for n in small.graphs[-1].graph.nodes)


def test_promised_strides_are_restored(compiled, small, monkeypatch):
    class Transposing(SmallBackend):
        keeps_format = False

    def run_in_another_format(graph):
        return lambda *inputs: [
            r.transpose(-1, -2).contiguous().transpose(-1, -2) for r in Interpreter(graph).run(*inputs)
        ]

    monkeypatch.setattr(type(small), "keeps_format", False)
    monkeypatch.setattr(small, "compile", run_in_another_format)
    x = torch.randn(3, 4)
    result = compiled(lambda x: x * 2)(x)
    assert result.stride() == (4, 1) and torch.equal(result, x * 2)
