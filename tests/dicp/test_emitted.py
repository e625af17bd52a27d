"""Backends that emit a program for a vendor's compiler: what runs it, and what is said."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.fx import Interpreter

from dicp import registry
from dicp.dynamo_bridge.compile_fx import compile_fx
from dicp.emitted.backend import EmittingBackend
from dicp.emitted.precision import differences
from dicp.emitted.program import EmittedProgram, MissingSdkError
from dicp.errors import InvalidGraphError

pytestmark = pytest.mark.unit
aten = torch.ops.aten


class Listing(EmittedProgram):
    """The graph's text; `shift` is added to what the interpreter gives."""

    def __init__(self, graph, shift: float = 0.0) -> None:
        self.graph, self.shift, self.interpreted = graph, shift, 0

    def texts(self):
        return {"graph.txt": str(self.graph.graph)}

    def check(self) -> None:
        if "relu" in self.texts()["graph.txt"]:
            raise InvalidGraphError("relu_1: no such operator")

    def interpret(self, inputs):
        self.interpreted += 1
        return [result + self.shift for result in Interpreter(self.graph).run(*inputs)]


class EmittingTestBackend(EmittingBackend):
    name, sdk = "listgraph", "the listing SDK"
    shift = 0.0
    loader = None
    precise = False

    def __init__(self) -> None:
        self.programs: list[Listing] = []

    def decompositions(self):
        return {}

    def supports(self, node):
        return True

    def checks_precision(self):
        return self.precise

    def emit(self, graph):
        self.programs.append(Listing(graph, self.shift))
        return self.programs[-1]

    def hand_over(self, program):
        if self.loader is None:
            raise MissingSdkError("no module named list_sdk")
        return self.loader(program)


@pytest.fixture
def backend(monkeypatch):
    found = EmittingTestBackend()
    monkeypatch.setitem(registry._REGISTERED, found.name, found)
    return found


def compiled(function, **kwargs):
    def listgraph(gm, inputs, **options):
        return compile_fx(gm, inputs, "listgraph", **options)

    return torch.compile(function, backend=listgraph, **kwargs)


def test_without_the_sdk_graphs_run_eagerly_and_it_is_said_once(backend, caplog):
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, "dicp"):
        assert torch.equal(compiled(lambda x: x * 2)(x), x * 2)
        assert torch.equal(compiled(lambda x: x + 5)(x), x + 5)
    assert len(caplog.records) == 1
    assert "the listing SDK was not found (no module named list_sdk)" in caplog.text
    assert [program.interpreted for program in backend.programs] == [0, 0]
    assert "mul" in backend.artifacts(backend.programs[0].graph)["graph.txt"]


def test_the_interpreter_runs_what_was_emitted(backend, monkeypatch):
    backend.shift = 1.0
    x = torch.randn(3)
    assert torch.equal(compiled(lambda x: x * 2, options={"run": "interpreter"})(x), x * 2 + 1)
    monkeypatch.setenv("DICP_EMITTED_RUN", "interpreter")
    assert torch.equal(compiled(lambda x: x * 3)(x), x * 3 + 1)
    with pytest.raises(Exception, match="simulator"):
        compiled(lambda x: x * 4, options={"run": "simulator"})(x)


def test_with_the_sdk_the_program_is_handed_over(backend, caplog):
    backend.loader = lambda program: lambda *inputs: [value * 0 + 7 for value in inputs]
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, "dicp"):
        assert torch.equal(compiled(lambda x: x * 2)(x), torch.full((3,), 7.0))
    assert not caplog.records


def test_a_wrong_program_is_not_run(backend, monkeypatch):
    monkeypatch.setenv("DICP_FALLBACK", "unsupported")
    with pytest.raises(Exception, match="relu_1: no such operator"):
        compiled(lambda x: torch.relu(x))(torch.randn(3))


def test_the_precision_check_says_what_differs(backend, caplog):
    backend.precise, backend.shift = True, 0.5
    with caplog.at_level(logging.INFO, "dicp"):
        compiled(lambda x: (x * 2, x + 1))(torch.tensor([1.0, 4.0]))
    found = [record.getMessage() for record in caplog.records if "precision check" in record.getMessage()]
    assert len(found) == 2
    assert "output 0 (aten.mul.Tensor): 2 of 2 elements differ" in found[0]
    assert "output 1 (aten.add.Tensor)" in found[1]
    backend.shift = 0.0
    caplog.clear()
    with caplog.at_level(logging.INFO, "dicp"):
        compiled(lambda x: x - 1)(torch.tensor([1.0, 4.0]))
    assert "all 1 outputs agree" in caplog.text


def test_differences():
    right = torch.tensor([1.0, float("nan"), float("inf")])
    assert differences(["a"], [right.clone()], [right]) == []
    cases = [
        (right.double(), "torch.float64, eager has torch.float32"),
        (right[:2], r"sizes [2], eager has [3]"),
        (torch.tensor([1.0, 0.0, float("inf")]), "1 of 3 elements differ"),
        (torch.tensor([1.5, float("nan"), float("inf")]), "at [0]: 1.5, eager has 1.0"),
    ]
    for result, text in cases:
        (found,) = differences(["a"], [result], [right])
        assert text in str(found)
    assert "2 outputs instead of 1" in str(differences(["a"], [right, right], [right])[0])
    assert differences(["a"], [torch.tensor(3)], [torch.tensor(4)])
