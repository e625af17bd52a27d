"""The suite against a library whose functions each have one mistake: each is reported where it is, and nothing else."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from diopi.cli import app
from diopi.conformance.difference import compare, printed
from diopi.conformance.html_report import page_of
from diopi.conformance.json_report import ReportFileError, read_json, write_json
from diopi.conformance.junit import write_junit
from diopi.conformance.own_source import OwnSource
from diopi.conformance.pool import PoolError
from diopi.conformance.results import Result
from diopi.conformance.runner import QUICK_CASES, Report, Request, Runner
from diopi.conformance.selection import Selection, Skip

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parent
# Function -> what every failure of it says, and whether all of its float32 cases with elements fail.
MISTAKES = {
    "diopiAbs": "elements of out unwritten",
    "diopiFloor": "wrote",
    "diopiCeil": "changed 1 element of input, which is only read",
    "diopiRelu": "two runs with the same inputs disagree: out (1 of ",
    "diopiSign": "crashed (signal 11 SIGSEGV)",
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


def _run(library: Path, selection: Selection, **options: object) -> Report:
    request = Request(library, selection, [OwnSource()], workers=2)
    for name, value in options.items():
        setattr(request, name, value)
    return Runner(request).run()


@pytest.fixture(scope="module")
def report(library: Path) -> Report:
    return _run(library, Selection(FUNCTIONS, frozenset(("float32", "bfloat16"))))


def _of(report: Report, function: str, dtype: str = "float32") -> list[Result]:
    return [r for r in report.results if r.function == function and r.dtype == dtype]


@pytest.mark.parametrize("function", sorted(MISTAKES))
def test_a_mistake_is_reported_where_it_is(report: Report, function: str) -> None:
    failed = [r for r in _of(report, function) if r.status == "fail"]
    assert failed
    assert all(MISTAKES[function] in r.reason for r in failed), [r.reason for r in failed]
    assert all(r.arguments for r in failed if "crashed" not in r.reason)


def test_what_is_right_passes_and_what_is_missing_is_unsupported(report: Report) -> None:
    assert {r.status for r in (*_of(report, "diopiNeg"), *_of(report, "diopiLog10"))} == {"pass"}
    assert len(_of(report, "diopiNeg")) >= 12
    assert {(r.status, r.reason) for r in _of(report, "diopiCos")} == {("unsupported", "not implemented")}
    assert {r.status for r in _of(report, "diopiSqrt")} == {"unsupported"}
    halves = {(r.status, r.reason.partition(":")[0]) for r in _of(report, "diopiNeg", "bfloat16")}
    assert halves == {("unsupported", "dtype not supported")}


def test_a_crash_costs_one_case_and_the_run_goes_on(report: Report) -> None:
    counts = Counter(r.status for r in _of(report, "diopiSign"))
    assert counts["pass"] > counts["fail"] > 0
    own = [case.id for case in OwnSource().cases("diopiSign") if case.dtype in ("float32", "bfloat16")]
    assert [r.id for r in report.results if r.function == "diopiSign"] == own


def test_a_hang_costs_one_case_too(library: Path) -> None:
    """The limit is long enough for a busy machine; the choice holds one or two large tensors."""
    selection = Selection(frozenset({"diopiErf"}), frozenset({"float32"}), quick=5)
    results = _run(library, selection, timeout=5.0).results
    hung = [r for r in results if r.status == "fail"]
    assert hung and {r.reason for r in hung} == {"no answer within 5 s"}
    assert any(r.status == "pass" for r in results) and len(results) == 5


def test_writing_past_the_end_and_ignoring_strides_are_told_apart(report: Report) -> None:
    floor = [r for r in _of(report, "diopiFloor") if r.status == "fail"]
    assert any(r.reason.startswith("wrote 4 bytes behind the end of out") for r in floor)
    tanh = {r.label: r.reason for r in _of(report, "diopiTanh") if r.status == "fail"}
    assert "between the elements of out" in tanh["strided output"]
    assert "bytes" not in tanh["strided"] and "" not in tanh, "contiguous cases must pass"


def test_only_aliased_inputs_show_what_is_cleared_too_early(report: Report) -> None:
    failed = {r.label for r in _of(report, "diopiMulInp") if r.status == "fail"}
    assert failed == {"aliased", "strided, aliased"}


def test_a_wrong_value_comes_with_its_worst_elements(report: Report) -> None:
    wrong = next(r for r in _of(report, "diopiAbs") if r.status == "fail").wrong[0]
    assert (wrong.name, wrong.dtype) == ("out", "float32")
    assert wrong.worst[0].got.startswith("3.39615")
    assert len(wrong.worst) == 1 and len(wrong.worst[0].index) == len(wrong.shape)


def test_a_case_runs_again_alone(library: Path, report: Report) -> None:
    first = next(r for r in _of(report, "diopiExp") if r.status == "fail")
    again = _run(library, Selection(case=first.id))
    assert [(r.id, r.status, r.reason) for r in again.results] == [(first.id, "fail", first.reason)]
    assert again.exit_code == 1


def test_abort_shows_the_last_line_that_was_printed(library: Path) -> None:
    report = _run(library, Selection(case="own:diopiSin:0"))
    assert report.results[0].reason == "crashed (signal 6 SIGABRT): out of registers"


def test_fail_fast_skips_and_interruption(library: Path) -> None:
    fast = _run(library, Selection(frozenset({"diopiAbs"})), fail_fast=True, workers=1)
    assert fast.counts()["fail"] == 1 and len(fast.results) < 10
    rules = (Skip("the last element is known to be wrong", function="diopiA*", dtype="float*"),)
    skipped = _run(library, Selection(frozenset({"diopiAbs"}), frozenset({"float32"}), skips=rules))
    assert set(skipped.counts()) == {"skipped"} and skipped.exit_code == 5
    assert {r.reason for r in skipped.results} == {rules[0].reason}

    def interrupt(result: Result | None, done: int, total: int) -> None:
        signal.raise_signal(signal.SIGINT)

    request = Request(library, Selection(frozenset({"diopiNeg"})), [OwnSource()], workers=1)
    stopped = Runner(request, interrupt).run()
    assert stopped.interrupted and stopped.exit_code == 130 and len(stopped.results) == 1


def test_quick_takes_a_few_cases_of_every_function(library: Path) -> None:
    wanted = frozenset({"diopiNeg", "diopiCos", "diopiAbs", "diopiSqrt"})
    counts = Counter(r.function for r in _run(library, Selection(wanted, quick=QUICK_CASES)).results)
    assert counts == dict.fromkeys(wanted, QUICK_CASES)


def test_a_file_that_is_no_library_stops_the_run(tmp_path: Path) -> None:
    text = tmp_path / "libtext.so"
    text.write_text("no library")
    with pytest.raises(PoolError, match=r"libtext\.so"):
        _run(text, Selection(frozenset({"diopiNeg"})))


def test_json_junit_and_page_hold_the_run(report: Report, tmp_path: Path) -> None:
    write_json(report, tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["kind"] == "diopi-conformance"
    assert document["schema"] == 2 and document["library"]["vendor"] == "faulty"
    assert document["counts"] == {s: report.counts()[s] for s in ("pass", "fail", "unsupported", "skipped")}
    again = read_json(tmp_path / "run.json")
    assert [r.plain() for r in again.results] == [r.plain() for r in report.results]
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


def test_the_difference_of_two_runs(report: Report, tmp_path: Path) -> None:
    later = Report(report.library, results=[Result(**_fields(r)) for r in report.results])
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
        found.worse and f"{passed.id} float32" in printed(found) and "broken since Tuesday" in printed(found)
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


def _fields(result: Result) -> dict[str, object]:
    return {name: getattr(result, name) for name in Result.__dataclass_fields__}
