"""The benchmarks' arithmetic on a clock that is told what to show: ratios, alternation, targets, storage."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.null


def load(name: str) -> ModuleType:
    """A benchmark file by path: `benchmarks` is a folder of scripts, not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


interleaved = load("interleaved")
report = load("report")


class FakeMachine:
    """A clock that only work moves. Its speed can drift; the order of the work is remembered."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []
        self.slowness: Iterator[float] | None = None

    def clock(self) -> float:
        return self.now

    def side(self, name: str, seconds: float) -> Any:
        def work() -> None:
            self.order.append(name)
            factor = next(self.slowness) if self.slowness is not None else 1.0
            self.now += seconds * factor

        return interleaved.Side(work)

    def compare(self, baseline: float, candidate: float, rounds: int) -> Any:
        """Compare two pieces of work by what one call of each takes."""
        sides = self.side("a", baseline), self.side("b", candidate)
        return interleaved.compare(*sides, rounds=rounds, clock=self.clock)


def test_ratio_of_constant_work_is_exact() -> None:
    machine = FakeMachine()
    result = interleaved.compare(
        machine.side("a", 0.5), machine.side("b", 0.75), rounds=7, clock=machine.clock
    )
    assert len(result.baseline) == len(result.candidate) == 7
    assert result.baseline_median == pytest.approx(0.5)
    assert result.candidate_median == pytest.approx(0.75)
    assert result.ratio_of_medians == pytest.approx(1.5)
    assert result.median_of_ratios == pytest.approx(1.5)
    assert result.quartiles == pytest.approx((1.5, 1.5))


def test_who_goes_first_alternates() -> None:
    machine = FakeMachine()
    machine.compare(1.0, 1.0, rounds=4)
    assert "".join(machine.order[-8:]) == "abbaabba"


def test_drift_does_not_reach_the_ratio_of_rounds() -> None:
    machine = FakeMachine()
    machine.slowness = iter(1.01**i for i in range(10_000))
    result = interleaved.compare(
        machine.side("a", 1.0), machine.side("b", 1.2), rounds=100, clock=machine.clock
    )
    assert result.baseline[-1] / result.baseline[0] > 5, "the machine became much slower meanwhile"
    assert result.median_of_ratios == pytest.approx(1.2, rel=0.011)


def test_one_disturbed_round_moves_nothing() -> None:
    disturbed = interleaved.Comparison(1, baseline=[1.0] * 9, candidate=[1.1] * 8 + [50.0])
    assert disturbed.median_of_ratios == pytest.approx(1.1)
    assert disturbed.ratio_of_medians == pytest.approx(1.1)


def test_quartiles_enclose_the_middle_half() -> None:
    result = interleaved.Comparison(1, baseline=[1.0] * 5, candidate=[1.0, 2.0, 3.0, 4.0, 5.0])
    assert result.quartiles == pytest.approx((2.0, 4.0))
    assert result.median_of_ratios == 3.0


def test_slices_are_filled_with_calls() -> None:
    machine = FakeMachine()
    fast, slow = machine.side("fast", 1e-6), machine.side("slow", 0.2)
    assert interleaved.calls_per_slice(fast, 0.01, machine.clock) == pytest.approx(10_000, rel=0.01)
    assert interleaved.calls_per_slice(slow, 0.01, machine.clock) == 1


def test_seconds_are_per_call_and_include_the_wait() -> None:
    machine = FakeMachine()

    def wait() -> None:
        machine.now += 4.0

    side = interleaved.Side(machine.side("a", 1.0).work, wait)
    assert side.seconds(4, machine.clock) == pytest.approx((4 * 1.0 + 4.0) / 4)


def test_no_rounds_is_an_error() -> None:
    machine = FakeMachine()
    with pytest.raises(ValueError, match="at least 1, not 0"):
        machine.compare(1.0, 1.0, rounds=0)


@pytest.mark.parametrize(
    ("figure", "target", "missed", "verdict"),
    [(1.35, 1.35, False, "met (<= 1.35)"), (1.36, 1.35, True, "missed (<= 1.35)"), (9.0, None, False, "")],
)
def test_targets(figure: float, target: float | None, missed: bool, verdict: str) -> None:
    case = report.Case("add", figure, [str(figure)], target)
    assert (case.missed, case.verdict) == (missed, verdict)
    assert report.Report("t", ["ratio"], [case]).missed == (["add"] if missed else [])


def test_stored_result_holds_every_raw_figure(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    case = report.Case("add", 1.25, ["1.25"], 1.35, raw={"baseline_s": [1e-6, 2.0, -3], "empty": []})
    report.write_json(path, {"cases": [report.asdict(case)], "text": ["1, 2", "[3]"]})
    stored = json.loads(path.read_text())
    assert stored["cases"][0]["raw"] == {"baseline_s": [1e-6, 2.0, -3], "empty": []}
    assert stored["text"] == ["1, 2", "[3]"]
    assert "[1e-06, 2.0, -3]" in path.read_text(), "a list of numbers takes one line"
    assert [p.name for p in path.parent.iterdir()] == ["result.json"], "no temporary file stays behind"


def test_benchmarks_are_found_by_name() -> None:
    found = load("run").benchmarks()
    assert {"device_overhead", "opinfo_full"} <= set(found)
    assert not {"run", "report", "interleaved"} & set(found)
    assert all(found.values()), "every benchmark says in one line what it measures"


status_table = load("status_table")


def test_the_page_shows_the_stored_figures() -> None:
    """Or else: python benchmarks/status_table.py"""
    page = status_table.PAGE.read_text(encoding="utf-8")
    assert status_table.page(page) == page
    assert "| `torch_dipu` | OpInfo, gaps: forward | <= 20 | 0 of 6,121 | yes |" in page


def test_every_figure_that_was_entered_by_hand_is_complete() -> None:
    entries = status_table.stored("recorded")["cases"]
    assert len({entry["name"] for entry in entries}) == len(entries) > 40
    for entry in entries:
        assert isinstance(entry["figure"], int | float)
        assert entry["command"] and entry["revision"] and entry["time"]
        assert entry["target"] is None or entry["bound"] in status_table.MET


def test_cells_hold_no_prose() -> None:
    for row in status_table.ROWS:
        _, what, target, measured, met, _, _ = status_table.cells(row)
        assert len(what) <= 90 and ". " not in what and ";" not in what
        assert len(target) <= 20 and len(measured) <= 20
        assert met in ("yes", "**no**", "")


@pytest.mark.parametrize(
    ("bound", "figure", "cells"),
    [
        ("<=", 1.2, ["<= 1.35 s", "1.20 s", "yes"]),
        ("<=", 1.4, ["<= 1.35 s", "1.40 s", "**no**"]),
        (">=", 1.4, [">= 1.35 s", "1.40 s", "yes"]),
        ("=", 1, ["= 1.35 s", "1 s", "**no**"]),
    ],
)
def test_a_row_is_its_stored_figure(
    monkeypatch: pytest.MonkeyPatch, bound: str, figure: float, cells: list[str]
) -> None:
    stored = {"benchmark": "b", "cases": [{"name": "c", "figure": figure, "target": 1.35}]}
    monkeypatch.setattr(status_table, "stored", lambda file: stored)
    shown = status_table.cells(status_table.Row("p", "w", "b", "c", bound, "s"))
    assert shown == ["`p`", "w", *cells, "", "`python benchmarks/run.py b`"]
    with pytest.raises(KeyError, match="b has no case 'd'; it has"):
        status_table.cells(status_table.Row("p", "w", "b", "d"))
