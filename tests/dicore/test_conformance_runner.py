"""Runs of a suite: workers that crash, hang, die between cases or cannot be had; the run goes on and says what is missing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from trap_suite import FUNCTION, FragileSuite, TrapSuite

from dicore.conformance.case_filter import CaseFilter, SelectionError, SkipRule
from dicore.conformance.results import CaseResult, RunReport
from dicore.conformance.runner import OnProgress, RunOptions, run_suite
from dicore.conformance.suite import SuiteError
from dicore.conformance.worker import evenly

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def workers_find_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def _run(
    suite: TrapSuite,
    on_progress: OnProgress | None = None,
    wanted: CaseFilter | None = None,
    **options: object,
) -> RunReport:
    given = {"workers": 1, **options}
    return run_suite(suite, RunOptions(wanted or CaseFilter(), **given), on_progress)  # type: ignore[arg-type]


def _short(report: RunReport) -> list[tuple[str, str]]:
    return [(r.id.partition(":")[2], r.status) for r in report.results]


def _passed(group: str, *numbers: int) -> list[tuple[str, str]]:
    return [(f"{group}:{number}", "pass") for number in numbers]


# ---- crashes and hangs ----


def test_a_crash_costs_one_case_and_says_what_was_printed_last(tmp_path: Path) -> None:
    report = _run(TrapSuite("aborts", "plain", folder=tmp_path))
    assert _short(report) == [
        *_passed("aborts", 0),
        ("aborts:1", "fail"),
        *_passed("aborts", 2, 3),
        *_passed("plain", *range(4)),
    ]
    (failed,) = report.failures()
    assert failed.reason == "crashed (signal 6, SIGABRT): out of registers"
    assert (failed.function, failed.dtype, failed.label) == (FUNCTION, "int8", "odd")
    assert (report.vendor, report.version, report.suite) == ("trapper", "1.0", "trap")
    assert list(report.environment)[:2] == ["python", "trap"]
    assert (tmp_path / "opened").read_text() == "xx" and (tmp_path / "closed").exists()


def test_a_hang_costs_one_case_too(tmp_path: Path) -> None:
    report = _run(TrapSuite("hangs", folder=tmp_path), timeout=1.0)
    assert _short(report) == [*_passed("hangs", 0), ("hangs:1", "fail"), *_passed("hangs", 2, 3)]
    assert report.failures()[0].reason == "timed out after 1 s"


def test_a_result_that_leaves_a_dead_worker_costs_its_case_only(tmp_path: Path) -> None:
    """Such as a CUDA context after an illegal access."""
    report = _run(TrapSuite("dies", "plain", folder=tmp_path))
    assert _short(report) == [
        *_passed("dies", 0),
        ("dies:1", "fail"),
        *_passed("dies", 2, 3),
        *_passed("plain", *range(4)),
    ]
    assert report.failures()[0].reason == "illegal memory access"
    assert (tmp_path / "opened").read_text() == "xx"
    here = _run(TrapSuite("dies", folder=tmp_path), in_process=True)
    assert [r.status for r in here.results] == ["pass", "fail", "fail", "fail"], "one process has one context"


def test_a_group_that_ended_many_workers_is_not_run_any_further(tmp_path: Path) -> None:
    report = _run(FragileSuite("fragile", "plain", folder=tmp_path))
    assert [r.reason for r in report.failures()] == [
        "ended with exit code 7",
        "ended with exit code 7",
        "not run, and 1 more: fragile ended 2 processes",
    ]
    assert _short(report)[3:] == _passed("plain", *range(4))
    done: list[int] = []
    _run(FragileSuite("fragile", folder=tmp_path), lambda result, groups, total: done.append(groups))
    assert done[-1] == 1


# ---- between cases ----


def test_a_worker_that_dies_between_cases_loses_none_of_them(tmp_path: Path) -> None:
    report = _run(TrapSuite("once", "plain", folder=tmp_path))
    assert _short(report) == [
        *_passed("once", 0),
        ("once:1", "fail"),
        *_passed("once", 2, 3),
        *_passed("plain", *range(4)),
    ]
    said = report.failures()[0].reason
    assert said == "after case trap:once:1, before the next began: ended with exit code 3"


def test_a_group_is_given_up_after_a_second_crash_between_the_same_cases(tmp_path: Path) -> None:
    done: list[int] = []
    report = _run(
        TrapSuite("always", "plain", folder=tmp_path), lambda result, groups, total: done.append(groups)
    )
    failed = [("always:1", "fail"), ("always:2", "fail")]
    assert _short(report) == [*_passed("always", 0), *failed, *_passed("plain", *range(4))]
    assert report.failures()[1].reason == (
        "ended with exit code 3 2 times behind trap:always:1; from here on the group was not run"
    )
    assert done[-1] == 2


def test_an_error_of_a_source_costs_one_case_or_says_what_is_missing(tmp_path: Path) -> None:
    report = _run(TrapSuite("raises", "plain", folder=tmp_path))
    assert _short(report) == [*_passed("raises", 0, 1), ("raises:2", "fail"), *_passed("plain", *range(4))]
    said = report.failures()[0].reason
    assert "the suite raised ValueError: no such sample (trap_suite.py:" in said
    assert said.endswith("from trap:raises:2 on nothing was run")
    for wanted in (CaseFilter(), CaseFilter(quick=9)):
        again = _run(TrapSuite("resumable", folder=tmp_path), wanted=wanted)
        expected = [*_passed("resumable", 0), ("resumable:1", "fail"), *_passed("resumable", 2, 3)]
        assert _short(again) == expected
        assert "nothing was run" not in again.failures()[0].reason
    alone = _run(TrapSuite("resumable", folder=tmp_path), wanted=CaseFilter(case="trap:resumable:3"))
    assert _short(alone) == _passed("resumable", 3)


def test_an_error_of_the_suite_is_a_failure_of_the_case(tmp_path: Path) -> None:
    report = _run(TrapSuite("errs", folder=tmp_path))
    assert _short(report) == [*_passed("errs", 0), ("errs:1", "fail"), *_passed("errs", 2, 3)]
    assert "the suite raised KeyError: 'nothing there' (trap_suite.py:" in report.failures()[0].reason


# ---- workers that cannot be had ----


def test_what_cannot_be_opened_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "gone").touch()
    with pytest.raises(SuiteError, match=r"^libtrap.so is gone$"):
        _run(TrapSuite("plain", folder=tmp_path))


def test_what_cannot_be_opened_again_fails_what_is_left(tmp_path: Path) -> None:
    def vanish(result: CaseResult | None, done: int, total: int) -> None:
        (tmp_path / "gone").touch()

    report = _run(TrapSuite("once", "plain", folder=tmp_path), vanish)
    failed = [("once:1", "fail"), ("once:2", "fail"), ("plain:0", "fail")]
    assert _short(report) == [*_passed("once", 0), *failed]
    reason = "not run: libtrap.so is gone; from here on the group was not run"
    assert [r.reason for r in report.failures()[1:]] == [reason, reason]
    assert report.vendor == "trapper" and report.exit_code == 1


def test_a_worker_that_is_gone_when_it_gets_a_group_is_replaced(tmp_path: Path) -> None:
    killed = []

    def kill(result: CaseResult | None, done: int, total: int) -> None:
        if result is None and not killed:
            killed.append(int((tmp_path / "pid").read_text()))
            os.kill(killed[0], signal.SIGKILL)

    report = _run(TrapSuite("one", "two", folder=tmp_path), kill)
    assert killed and len(report.results) == 8
    # The worker has the next group already; whether it had begun a case of it is a matter of luck.
    assert all("SIGKILL" in r.reason for r in report.failures()) and len(report.failures()) <= 1


# ---- what is run ----


def test_cases_that_are_decided_beforehand_are_not_run(tmp_path: Path) -> None:
    report = _run(TrapSuite("decided", folder=tmp_path))
    assert [(r.status, r.reason) for r in report.results] == [
        ("pass", ""),
        ("skipped", "no 1"),
        ("fail", "no 2"),
        ("fail", "no 3"),
    ]


def test_filters_and_skips(tmp_path: Path) -> None:
    suite = TrapSuite("plain", "other", folder=tmp_path)
    rules = (SkipRule("known", label="odd", case="trap:plain:*"),)
    report = _run(suite, wanted=CaseFilter(dtypes=frozenset({"int8"}), skips=rules), in_process=True)
    assert _short(report) == [
        ("plain:1", "skipped"),
        ("plain:3", "skipped"),
        ("other:1", "pass"),
        ("other:3", "pass"),
    ]
    quick = _run(suite, wanted=CaseFilter(quick=2), in_process=True)
    assert _short(quick) == [*_passed("plain", 0, 3), *_passed("other", 0, 3)]
    assert quick.whole and quick.not_covered == ["trapOther"] and quick.exit_code == 1
    some = _run(suite, wanted=CaseFilter(frozenset({FUNCTION, "trapOther"})), in_process=True)
    assert some.not_covered == ["trapOther"] and not some.whole and some.exit_code == 0
    assert not _run(suite, wanted=CaseFilter(partial=True), in_process=True).not_covered
    assert evenly(5, 8) == [0, 1, 2, 3, 4] and evenly(100, 3) == [0, 50, 99] and evenly(9, 1) == [0]


def test_the_first_failure_may_end_the_run(tmp_path: Path) -> None:
    for in_process in (False, True):
        suite = TrapSuite("fails", "plain", folder=tmp_path)
        report = _run(suite, fail_fast=True, in_process=in_process)
        assert _short(report) == [*_passed("fails", 0), ("fails:1", "fail")] and not report.whole


def test_an_interrupt_ends_with_a_report(tmp_path: Path) -> None:
    def interrupt(result: CaseResult | None, done: int, total: int) -> None:
        signal.raise_signal(signal.SIGINT)

    stopped = _run(TrapSuite("plain", folder=tmp_path), interrupt)
    assert stopped.interrupted and stopped.exit_code == 130 and len(stopped.results) == 1


def test_several_workers_give_the_results_in_order(tmp_path: Path) -> None:
    groups = [f"group{number}" for number in range(5)]
    report = _run(TrapSuite(*groups, folder=tmp_path), workers=2)
    assert _short(report) == [item for group in groups for item in _passed(group, *range(4))]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("plain", "'plain' is not the id of a case, .*; cases look like trap:plain:0"),
        ("other:plain:0", "of the source 'other', which is not there"),
        ("trap:plian:0", "the source 'trap' has no group 'plian'; near are plain"),
        ("trap:plain:9", "there is no case trap:plain:9: trap:plain has numbers from 0 to 3"),
    ],
)
def test_a_case_that_does_not_exist_is_refused(case: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match=message):
        _run(TrapSuite("plain", folder=tmp_path), wanted=CaseFilter(case=case), in_process=True)
