"""The conformance suite of backends: what is right passes, every kind of mistake fails, and what runs eagerly is said."""

from __future__ import annotations

import pickle

import pytest
import torch
from dicp_interpreting_backends import (
    DroppingBackend,
    FailingBackend,
    IdleBackend,
    InterpretingBackend,
    RefusingBackend,
    ReusingBackend,
    StaleBackend,
    of_another_dtype,
    of_one_wrong_element,
    of_other_strides,
)
from typer.testing import CliRunner

from dicore.conformance.case_filter import CaseFilter
from dicore.conformance.report_files import read_json
from dicore.conformance.results import RunReport
from dicore.conformance.runner import RunOptions, run_suite
from dicp import registry
from dicp.conformance.command import program
from dicp.conformance.declaration import OPERATORS
from dicp.conformance.suite import DicpSuite

pytestmark = pytest.mark.unit
aten = torch.ops.aten

# Unary and binary, a reduction, a product, a copy, a composite of several nodes.
SOME = frozenset(("add", "mm", "cat", "_softmax", "gelu", "relu"))
FEW = ("mm", "cat", "_softmax")


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch):
    """Runs the suite over a backend, in this process."""

    def check(backend: InterpretingBackend, operators=SOME, dtypes=("float32",), dynamic="all") -> RunReport:
        monkeypatch.setitem(registry._REGISTERED, backend.name, backend)
        wanted = CaseFilter(functions=frozenset(operators), dtypes=frozenset(dtypes))
        return run_suite(DicpSuite(backend.name, dynamic=dynamic), RunOptions(wanted, in_process=True))

    return check


def test_there_are_enough_operators():
    DicpSuite("any")
    assert len(OPERATORS) >= 110
    assert all(
        entry.forms and all(form.dtypes and form.sizes for form in entry.forms)
        for entry in OPERATORS.values()
    )


def test_a_right_backend_passes(checked):
    report = checked(InterpretingBackend())
    assert report.exit_code == 0 and report.counts().keys() == {"pass"}
    assert report.functions() == SOME
    assert {result.label.split()[-1] for result in report.results} == {"static", "dynamic"}


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        (IdleBackend(), "result"),
        (StaleBackend(), "values 1|size"),
        (ReusingBackend(), "values 0|size"),
        (FailingBackend(), "the compiler is broken"),
        (InterpretingBackend(of_another_dtype), "float64"),
        (InterpretingBackend(of_one_wrong_element), "result"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, InterpretingBackend) else "",
)
def test_a_wrong_backend_fails_every_case(checked, backend, says):
    # Sizes matter to those alone that remember something.
    remembers = isinstance(backend, StaleBackend | ReusingBackend)
    report = checked(backend, FEW, dynamic="all" if remembers else "false")
    assert report.exit_code == 1
    assert {result.status for result in report.results} == {"fail"}
    assert all(any(part in result.reason for part in says.split("|")) for result in report.results)


def test_another_layout_is_wrong(checked):
    report = checked(InterpretingBackend(of_other_strides), ("mm", "bmm"))
    assert {result.status for result in report.results} == {"fail"}
    assert all("strides" in result.reason for result in report.results)


@pytest.mark.parametrize(
    ("name", "target"),
    [("add", aten.add.Tensor), ("relu", aten.relu.default), ("sigmoid", aten.sigmoid.default)],
)
def test_a_dropped_operator_is_noticed(checked, name, target):
    report = checked(DroppingBackend(target), (name,), ("float32", "int64"))
    tried = [result for result in report.results if not result.label.startswith("Scalar")]
    assert tried and all(result.status == "fail" for result in tried)


def test_a_backend_that_compiles_nothing_does_not_pass(checked):
    report = checked(RefusingBackend(), FEW)
    assert {result.status for result in report.results} == {"unsupported"}
    assert report.exit_code == 5
    assert all(
        "fell back: interpretinggraph does not compile aten." in result.reason for result in report.results
    )


def test_inputs_that_are_written_to(checked):
    class Writing(InterpretingBackend):
        def compile(self, graph):
            run = super().compile(graph)

            def write(*inputs):
                results = [value.clone() for value in run(*inputs)]
                inputs[0].zero_()
                return results

            return write

    report = checked(Writing(), ("relu", "mm"))
    assert all(
        result.status == "fail" and "wrote to its input 0" in result.reason for result in report.results
    )


def test_one_case_runs_again(checked, monkeypatch):
    report = checked(InterpretingBackend(of_one_wrong_element), ("add",))
    first = report.failures()[0]
    assert first.arguments and first.wrong[0].worst
    suite = pickle.loads(pickle.dumps(DicpSuite(InterpretingBackend.name)))
    again = run_suite(suite, RunOptions(CaseFilter(case=first.id), in_process=True))
    assert [result.title for result in again.results] == [first.title]


def test_static_and_dynamic_cases_keep_their_names(checked):
    both = checked(InterpretingBackend(), ("relu",))
    static = checked(InterpretingBackend(), ("relu",), dynamic="false")
    assert {result.id for result in static.results} < {result.id for result in both.results}
    assert all(result.label.endswith("static") for result in static.results)


def test_the_command(monkeypatch, tmp_path):
    monkeypatch.setitem(registry._REGISTERED, InterpretingBackend.name, InterpretingBackend())
    file = tmp_path / "run.json"
    arguments = [
        "--backend",
        "interpretinggraph",
        "--ops",
        "relu",
        "--dynamic",
        "false",
        "--here",
        "--json",
        str(file),
    ]
    result = CliRunner().invoke(program, arguments)
    assert result.exit_code == 0, result.output
    written = read_json(file)
    assert written.suite == "dicp" and written.functions() == {"relu"} and written.exit_code == 0
    for wrong, says in (
        (["--backend", "nosuchgraph"], "there is no backend 'nosuchgraph'"),
        ([], "give --backend NAME"),
        (["--backend", "interpretinggraph", "--dynamic", "maybe"], "expected one of false, true, all"),
        (["--backend", "interpretinggraph", "--ops", "ad"], "no function of the interface is called 'ad'"),
    ):
        result = CliRunner().invoke(program, wrong)
        assert result.exit_code == 2 and says in result.output
