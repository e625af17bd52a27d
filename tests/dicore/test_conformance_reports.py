"""What a run shows: the page in a real browser, the console in a pipe, the difference of two runs."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from dicore.conformance.comparison import compare, comparison_text
from dicore.conformance.console import print_report, rerun_command
from dicore.conformance.html_report import page_of
from dicore.conformance.results import CaseResult, RunReport, WrongElement, WrongTensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from headless_browser import Browser, chromium_path

pytestmark = pytest.mark.unit

LONG = "out: " + "a very long reason " * 20


def _report() -> RunReport:
    wrong = WrongTensor("out", [2], "float32", "off", [WrongElement([1], "0.5", "0.25", "0.25")])
    results = [
        CaseResult("own:diopiAbs:0", "diopiAbs", "float32", "", "pass"),
        CaseResult("own:diopiAbs:1", "diopiAbs", "bfloat16", "strided", "unsupported", "dtype not supported"),
        CaseResult("own:diopiExp:7", "diopiExp", "float32", "", "fail", LONG, wrong=[wrong]),
        CaseResult(
            "opinfo:special.i1:3", "", "bfloat16", "special.i1", "skipped", "PyTorch refuses special.i1"
        ),
    ]
    command = ["diopi", "conformance", "--library", "my libs/libchip.so"]
    started = "2026-01-02T03:04:05+00:00"
    return RunReport("my libs/libchip.so", "chip", "1.2", started, 1.5, results=results, command=command)


def test_lines_are_not_broken_in_a_pipe_and_one_is_not_several() -> None:
    stream = io.StringIO()
    print_report(_report(), stream)
    lines = stream.getvalue().splitlines()
    assert f"  own:diopiExp:7 float32: {LONG}".rstrip() in [line.rstrip() for line in lines]
    assert "  diopi conformance --library 'my libs/libchip.so' --case own:diopiExp:7" in lines
    assert "skipped 1: PyTorch refuses special.i1" in lines and lines[-1] == "2 functions in 1.5 s"
    report = _report()
    report.results = report.results[:1]
    stream = io.StringIO()
    print_report(report, stream)
    assert stream.getvalue().splitlines()[-1] == "1 function in 1.5 s"


def test_the_command_to_run_a_case_again_has_the_seed_of_the_run() -> None:
    report = _report()
    report.seed = 9
    assert rerun_command(report, "own:diopiExp:7").endswith("--case own:diopiExp:7 --seed 9")


def test_a_difference_begins_with_its_summary() -> None:
    later = _report()
    later.results[0].status = "fail"
    lines = comparison_text(compare(_report(), later)).splitlines()
    assert lines[0] == "worse" and lines[1].startswith("1 newly failing, 0 newly unsupported")
    assert lines[3] == "newly failing (1)" and lines[4].startswith("  own:diopiAbs:0 float32  was pass")


def test_the_page_names_the_file_and_counts_in_words() -> None:
    page = page_of(_report()).text()
    assert "<title>Conformance of libchip.so (chip 1.2)</title>" in page
    assert "1 of 4 cases failed, in 1 of 2 functions." in page
    assert "2026-01-02 03:04:05 UTC, took 1.5 s" in page
    report = _report()
    report.results = report.results[:1]
    assert "The one case that ran passed, of 1 function." in page_of(report).text()


@pytest.mark.skipif(chromium_path() is None, reason="no Chromium on the PATH: the page is not looked at")
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    path.write_text(page_of(_report()).text(), encoding="utf-8")
    with Browser(1280, 900) as browser:
        browser.open(path)
        assert browser.evaluate("document.getElementById('shown').textContent") == "2 functions"
        browser.evaluate("document.querySelector('#matrix a.bad').click()")
        assert browser.wait("document.getElementById('f-diopiExp').open")
        tops = "[...document.querySelectorAll('#about .facts > div')].map((row) => row.getBoundingClientRect().top)"
        found = browser.evaluate(tops)
        assert len(found) == 6 and found == sorted(set(found)), "one fact a line"
        browser.resize(400, 800)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 400
        assert browser.problems == []
        assert [address for address in browser.requests if not address.startswith("file:")] == []
