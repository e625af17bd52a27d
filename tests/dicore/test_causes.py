"""Failures by cause: what differs from case to case is left out, and rounding is told from wrong values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dicore.conformance.causes import cause_of, causes_of, causes_text, kind_of
from dicore.conformance.report_files import write_json
from dicore.conformance.results import CaseResult, RunReport
from diopi.cli import app

pytestmark = pytest.mark.unit


def _failed(number: int, function: str, reason: str, over: float | None = None) -> CaseResult:
    return CaseResult(f"own:{function}:{number}", function, "float32", "", "fail", reason, over)


RESULTS = [
    _failed(0, "diopiExp", "out: 3 of 35 elements are off, worst 1.5e-3 at [0, 4]", 40.0),
    _failed(1, "diopiExp", "out: 12 of 5003 elements are off, worst 2 at [17]; two runs disagree", 900.0),
    _failed(2, "diopiLog", "out: 1 of 7 elements are off, worst 7e-7 at [3]", 2.5),
    _failed(3, "diopiLog", "diopiLog threw a C++ exception: c10::Error: index 7 is out of range"),
    _failed(4, "diopiSin", "diopiSin threw a C++ exception: c10::Error: index 9 is out of range"),
    _failed(5, "diopiSin", "crashed (signal 11, SIGSEGV)"),
    CaseResult("own:diopiSin:6", "diopiSin", "float32", "", "pass"),
]


def test_causes_have_no_numbers_of_a_case() -> None:
    causes = causes_of(RunReport("lib.so", results=RESULTS))
    found = [(cause.kind, cause.text, dict(cause.functions)) for cause in causes]
    off = "out: N of N elements are off, worst N at [...]"
    assert found == [
        (
            "refused by an exception",
            "the function threw a C++ exception: c10::Error: index N is out of range",
            {"diopiLog": 1, "diopiSin": 1},
        ),
        ("wrong values", off, {"diopiExp": 2}),
        ("the process crashed or hung", "crashed (signal N, SIGSEGV)", {"diopiSin": 1}),
        ("values up to 16 times as far off as rounding explains", off, {"diopiLog": 1}),
    ]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (
            "diopiAbs threw a C++ exception: c10::NotImplementedError: no",
            "no kernel for the dtype or the device",
        ),
        ("timed out after 60 s", "the process crashed or hung"),
        ("returned error code 1: no", "refused by an error code"),
        ("left 3 of 5 elements of out unwritten", "results were not written"),
        ("wrote 3 bytes behind the end of out", "memory that is not the result's was written"),
        ("the suite raised TypeError: no", "the suite itself"),
        ("two runs with the same inputs disagree: out", "two runs differ"),
        ("out: 1 of 2 elements differ where results must be bit-exact", "wrong values"),
    ],
)
def test_kinds(reason: str, kind: str) -> None:
    assert kind_of(_failed(0, "diopiAbs", reason)) == kind


def test_names_with_digits_and_long_reasons() -> None:
    assert (
        cause_of(_failed(0, "diopiConv2d", "grad_input2: 5 of float16[3, 4]"))
        == "grad_input2: N of float16[...]"
    )
    assert cause_of(_failed(0, "diopiAbs", "no kernel for 'Half' at 0x7f")) == "no kernel for '...' at N"
    long = cause_of(_failed(0, "diopiAbs", "word " * 100))
    assert len(long) <= 124 and long.endswith("word ...")
    assert cause_of(_failed(0, "diopiAbs", "")) == "no reason"


def test_the_page(tmp_path: Path) -> None:
    report = RunReport("lib.so", vendor="v", version="1", suite="diopi", results=RESULTS)
    run, page = tmp_path / "run.json", tmp_path / "new.md"
    write_json(report, run)
    done = CliRunner().invoke(app, ["conformance", "causes", str(run), "--out", str(page)])
    assert done.exit_code == 0, done.output
    lines = page.read_text().splitlines()
    assert lines[:3] == [
        "# Failures by cause: diopi conformance of v 1",
        "",
        "7 cases of 3 functions: 6 fail, 1 pass.",
    ]
    assert "| 1 | the process crashed or hung |" in lines
    row = "| 1 | the process crashed or hung | crashed (signal N, SIGSEGV) | `diopiSin` (1) | `own:diopiSin:5` |"
    assert row in lines
    assert page.read_text() == causes_text(report) + "\n"
    run.write_text(json.dumps({}))
    done = CliRunner().invoke(app, ["conformance", "causes", str(run)])
    assert done.exit_code == 2 and "is not the JSON of" in done.output
