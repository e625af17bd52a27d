"""The suite finds deliberate mistakes of many kinds at the operator that has them, and raises no alarm elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

from dicore.conformance.case_filter import QUICK_CASES, CaseFilter
from dicore.conformance.results import RunReport
from dicore.conformance.runner import RunOptions, run_suite
from diopi.conformance.diopi_case import interface_functions
from diopi.conformance.own_source import OwnSource
from diopi.conformance.suite import DiopiSuite
from diopi.table import load

pytestmark = pytest.mark.unit

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
# What the reports of these mistakes say: how it is wrong, not only that it is.
REASONS = {
    "diopiCos": "elements of out unwritten",
    "diopiHardtanh": "bytes behind the end of out",
    "diopiSilu": "bytes in front of out",
    "diopiLeakyRelu": "bytes between the elements of out",
    "diopiWhere": "of other, which is only read",
    "diopiBmm": "two runs with the same inputs disagree",
    "diopiMm": "two runs with the same inputs disagree",
    "diopiTriu": "elements of out unwritten",
    "diopiErf": "times the bound",
    "diopiFlip": "zeros of another sign",
    "diopiSort": "indices: ",
    "diopiBatchNorm": "running_var: ",
    "diopiLayerNormBackward": "grad_weight: ",
}


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


_module("report")
sensitivity = _module("diopi_sensitivity")
MISTAKES: dict[str, str] = sensitivity.mistakes()


def _run(library: Path, functions: frozenset[str], quick: int | None) -> RunReport:
    options = RunOptions(CaseFilter(functions, quick=quick), workers=2)
    return run_suite(DiopiSuite(library, [OwnSource()]), options)


def _reasons(report: RunReport) -> dict[str, list[str]]:
    found = defaultdict(list)
    for failure in report.failures():
        found[failure.function].append(failure.reason)
    return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built: Path = sensitivity.build(tmp_path_factory.mktemp("mistakes") / "libmistakes.so")
    return built


@pytest.fixture(scope="module")
def found(library: Path) -> dict[str, list[str]]:
    report = _run(library, frozenset(MISTAKES), None)
    assert report.not_covered == [] and report.counts()["unsupported"] == 0
    return _reasons(report)


def test_there_are_forty_mistakes_of_different_kinds() -> None:
    assert len(MISTAKES) == len(set(MISTAKES.values())) == 40
    assert set(MISTAKES) <= interface_functions(load())
    assert len({load().entries[name].category for name in MISTAKES}) >= 8


def test_thirty_nine_of_forty_mistakes_are_found(found: dict[str, list[str]]) -> None:
    missed = sorted(set(MISTAKES) - set(found))
    assert len(missed) <= 1, missed


@pytest.mark.parametrize("function", sorted(REASONS))
def test_a_report_says_what_is_wrong(found: dict[str, list[str]], function: str) -> None:
    assert any(REASONS[function] in reason for reason in found[function]), found[function]


def test_untouched_operators_stay_green(library: Path) -> None:
    others = sorted(interface_functions(load()) - set(MISTAKES))
    chosen = frozenset(others[:: len(others) // 40][:40])
    assert len(chosen) == 40
    report = _run(library, chosen, QUICK_CASES)
    assert _reasons(report) == {}
    assert report.counts()["pass"] > 250
