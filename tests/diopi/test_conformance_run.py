"""The suite against a library whose functions each have one mistake: each is reported where it is, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

from dicore.conformance.case_filter import CaseFilter
from dicore.conformance.comparison import compare, comparison_text
from dicore.conformance.html_report import page_of
from dicore.conformance.report_files import ReportFileError, read_json, write_json, write_junit
from dicore.conformance.results import CaseResult, RunReport
from dicore.conformance.runner import RunOptions, run_suite
from dicore.conformance.suite import SuiteError
from diopi.cli import app
from diopi.conformance.case_files_source import CaseFileSource
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.own_source import OwnSource
from diopi.conformance.suite import DiopiSuite

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parent
# Function -> what every failure of it says, and whether all of its float32 cases with elements fail.
MISTAKES = {
    "diopiAbs": "elements of out unwritten",
    "diopiFloor": "wrote",
    "diopiCeil": "changed 1 element of input, which is only read",
    "diopiRelu": "two runs with the same inputs disagree: out (1 of ",
    "diopiSign": "crashed (signal 11, SIGSEGV)",
    "diopiReciprocal": "returned error code 1: the chip is on fire",
    "diopiTanh": "elements are off",
    "diopiExp": "two runs with the same inputs disagree",
    "diopiMulInp": "elements are off",
    "diopiUniformInp": "20 other seeds draw the same inout",
    "diopiLog": "wrote 3 bytes behind the end of a temporary tensor uint8[48]",
    "diopiLog2": "wrote 1 byte in front of a temporary tensor uint8[48]",
    "diopiNonzero": "wrote 8 bytes behind the end of out",
}
FUNCTIONS = frozenset(MISTAKES) | {"diopiNeg", "diopiLog10", "diopiSqrt", "diopiCos"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("vendor") / "libfaulty.so"
    include = FOLDER.parents[1] / "include"
    source = FOLDER / "faulty_vendor.c"
    command = ["gcc", "-std=gnu11", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{include}", "-o"]
    subprocess.run([*command, str(target), str(source), "-lm"], check=True)
    return target


def _run(library: Path, selection: CaseFilter, **options: object) -> RunReport:
    given = {"workers": 2, **options}
    return run_suite(DiopiSuite(library, [OwnSource()]), RunOptions(selection, **given))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def report(library: Path) -> RunReport:
    return _run(library, CaseFilter(FUNCTIONS, frozenset(("float32", "bfloat16"))))


def _of(report: RunReport, function: str, dtype: str = "float32") -> list[CaseResult]:
    return [r for r in report.results if r.function == function and r.dtype == dtype]


@pytest.mark.parametrize("function", sorted(MISTAKES))
def test_a_mistake_is_reported_where_it_is(report: RunReport, function: str) -> None:
    failed = [r for r in _of(report, function) if r.status == "fail"]
    assert failed
    assert all(MISTAKES[function] in r.reason for r in failed), [r.reason for r in failed]
    assert all(r.arguments for r in failed if "crashed" not in r.reason)


def test_what_is_right_passes_and_what_is_missing_is_unsupported(report: RunReport) -> None:
    assert {r.status for r in (*_of(report, "diopiNeg"), *_of(report, "diopiLog10"))} == {"pass"}
    assert len(_of(report, "diopiNeg")) >= 12
    assert {(r.status, r.reason) for r in _of(report, "diopiCos")} == {("unsupported", "not implemented")}
    assert {r.status for r in _of(report, "diopiSqrt")} == {"unsupported"}
    halves = {(r.status, r.reason.partition(":")[0]) for r in _of(report, "diopiNeg", "bfloat16")}
    assert halves == {("unsupported", "dtype not supported")}


def test_a_crash_costs_one_case_and_the_run_goes_on(report: RunReport) -> None:
    counts = Counter(r.status for r in _of(report, "diopiSign"))
    assert counts["pass"] > counts["fail"] > 0
    own = [case.id for case in OwnSource().cases("diopiSign") if case.dtype in ("float32", "bfloat16")]
    assert [r.id for r in report.results if r.function == "diopiSign"] == own


def test_writing_past_the_end_and_ignoring_strides_are_told_apart(report: RunReport) -> None:
    floor = [r for r in _of(report, "diopiFloor") if r.status == "fail"]
    assert any(r.reason.startswith("wrote 4 bytes behind the end of out") for r in floor)
    tanh = {r.label: r.reason for r in _of(report, "diopiTanh") if r.status == "fail"}
    assert "between the elements of out" in tanh["strided output"]
    assert "bytes" not in tanh["strided"] and "" not in tanh, "contiguous cases must pass"


def test_only_aliased_inputs_show_what_is_cleared_too_early(report: RunReport) -> None:
    failed = {r.label for r in _of(report, "diopiMulInp") if r.status == "fail"}
    assert failed == {"aliased", "strided, aliased"}


def test_a_wrong_value_comes_with_its_worst_elements(report: RunReport) -> None:
    wrong = next(r for r in _of(report, "diopiAbs") if r.status == "fail").wrong[0]
    assert (wrong.name, wrong.dtype) == ("out", "float32")
    assert wrong.worst[0].got.startswith("3.39615")
    assert len(wrong.worst) == 1 and len(wrong.worst[0].index) == len(wrong.shape)


def test_a_case_runs_again_alone(library: Path, report: RunReport) -> None:
    first = next(r for r in _of(report, "diopiExp") if r.status == "fail")
    again = _run(library, CaseFilter(case=first.id))
    assert [(r.id, r.status, r.reason) for r in again.results] == [(first.id, "fail", first.reason)]
    assert again.exit_code == 1


def test_a_file_that_is_no_library_stops_the_run(tmp_path: Path) -> None:
    text = tmp_path / "libtext.so"
    text.write_text("no library")
    with pytest.raises(SuiteError, match=r"libtext\.so"):
        _run(text, CaseFilter(frozenset({"diopiNeg"})))


def test_json_junit_and_page_hold_the_run(report: RunReport, tmp_path: Path) -> None:
    write_json(report, tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["kind"] == "diopi-conformance"
    assert document["schema"] == 2 and document["library"]["vendor"] == "faulty"
    assert document["counts"] == {s: report.counts()[s] for s in ("pass", "fail", "unsupported", "skipped")}
    again = read_json(tmp_path / "run.json")
    assert [r.as_plain() for r in again.results] == [r.as_plain() for r in report.results]
    write_junit(report, tmp_path / "run.xml")
    root = ElementTree.parse(tmp_path / "run.xml").getroot()
    assert root.get("name") == "diopi conformance"
    assert {case.get("classname") for case in root.iter("testcase")} == {
        f"diopi.{r.function}" for r in report.results
    }
    assert int(root.attrib["tests"]) == len(report.results) == len(root.findall("testsuite/testcase"))
    assert int(root.attrib["failures"]) == report.counts()["fail"] == len(root.findall(".//failure"))
    page = page_of(report).text()
    assert "http://" not in page and "https://" not in page and "src=" not in page
    first = next(r for r in report.failures() if r.function == "diopiAbs")
    assert f"--case {first.id}" in page and "3.39615136e+38" in page
    assert page.count('<tr data-name="diopi') == len({r.function for r in report.results})


def test_the_difference_of_two_runs(report: RunReport, tmp_path: Path) -> None:
    later = RunReport(
        report.subject, suite="diopi", results=[CaseResult(**_fields(r)) for r in report.results]
    )
    assert not compare(report, later).worse
    passed = next(r for r in later.results if r.function == "diopiNeg" and r.status == "pass")
    passed.status, passed.reason = "fail", "broken since Tuesday"
    failed = next(r for r in later.results if r.function == "diopiAbs" and r.status == "fail")
    failed.status = "pass"
    gone = later.results.pop(next(i for i, r in enumerate(later.results) if r.function == "diopiCos"))
    found = compare(report, later)
    assert [b.id for _, b in found.failing] == [passed.id]
    assert [b.id for _, b in found.passing] == [failed.id]
    assert [r.id for r in found.missing] == [gone.id] and not found.new
    assert (
        found.worse
        and f"{passed.id} float32" in comparison_text(found)
        and "broken since Tuesday" in comparison_text(found)
    )
    write_json(report, tmp_path / "a.json")
    write_json(later, tmp_path / "b.json")
    command = ["conformance", "diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 1 and "1 newly failing" in answer.output
    later.suite = "others"
    write_json(later, tmp_path / "b.json")
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 2 and "on diopi" in answer.output and "on others" in answer.output
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(ReportFileError, match="is not the JSON"):
        read_json(tmp_path / "c.json")


def _fields(result: CaseResult) -> dict[str, object]:
    return {name: getattr(result, name) for name in CaseResult.__dataclass_fields__}


class _LogicalNot:
    """Booleans that are right only where nobody wrote them."""

    name = "not"

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        return ["unwritten"]

    def cases(self, group: str) -> Iterator[DiopiCase]:
        yield DiopiCase(f"{self.name}:{group}:0", "diopiLogicalNot", "float32", "", {"input": torch.zeros(3)})


def test_unwritten_booleans_fail_and_what_torch_refuses_is_skipped_with_its_words(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FOLDER), prepend=os.pathsep)  # workers import this module
    path = tmp_path / "cases.py"
    path.write_text(
        "a = dict(name=['neg'], interface=['torch'],"
        " tensor_para=dict(args=[dict(ins=['input'], shape=[(2,), (3,)], dtype=['float32', 'bool'])]))\n"
    )
    suite = DiopiSuite(library, [_LogicalNot(), CaseFileSource(path)])
    first, *others = run_suite(suite, RunOptions(workers=1)).results
    assert (first.id, first.status) == ("not:unwritten:0", "fail")
    assert first.reason == "left 3 of 3 elements of out unwritten"
    assert [r.id for r in others] == [f"file:a::neg:{number}" for number in range(4)]
    assert {r.function for r in others} == {"diopiNeg"}
    kinds = [("bool", "skipped"), ("float32", "pass")]
    assert sorted((r.dtype, r.status) for r in others) == sorted([*kinds, *kinds])
    said = {r.reason for r in others if r.status == "skipped"}
    assert len(said) == 1 and said.pop().startswith(
        "PyTorch refuses neg on the CPU: Negation, the `-` operator, on a bool"
    )
