"""`make bench-check` on figures that are made up: what is worse, what is doubtful, and what the command says."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
pytestmark = pytest.mark.null


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("bench_check", FOLDER / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_check", module)
    spec.loader.exec_module(module)
    return module


def result(**figures: float | tuple[float, float]) -> dict[str, Any]:
    cases = []
    for name, value in figures.items():
        figure, target = value if isinstance(value, tuple) else (value, None)
        cases.append({"name": name.replace("_", " "), "figure": figure, "target": target})
    return {"benchmark": "made up", "environment": {"processor": "an abacus"}, "cases": cases}


def test_a_fifth_more_than_stored_is_worse_and_less_is_not(check: ModuleType) -> None:
    stored = result(a=2.0, b=2.0, c=2.0, d=2.0)
    found = check.compare(stored, result(a=2.39, b=2.41, c=1.5, d=2.0))
    assert [one.status for one in found] == ["same", "worse", "better", "same"]
    assert found[1].ratio == pytest.approx(1.205)
    assert [one.status for one in check.compare(stored, result(a=2.39, b=2.41, c=2.0, d=2.0), 0.5)] == [
        "same"
    ] * 4


def test_a_target_that_was_met_must_stay_met(check: ModuleType) -> None:
    stored = result(met=(1.00, 1.02), missed=(1.05, 1.02), lost=(1.0, 2.0))
    found = check.compare(stored, result(met=(1.03, 1.02), missed=(1.05, 1.02), fresh=(3.0, 2.0)))
    assert {one.name: one.status for one in found} == {
        "met": "target missed", "missed": "same", "lost": "gone", "fresh": "target missed",
    }  # fmt: skip


def test_seconds_are_held_against_their_target_alone(check: ModuleType) -> None:
    stored = result(import_seconds=(0.01, 0.3))
    assert check.compare(stored, result(import_seconds=(0.1, 0.3)))[0].status == "same"
    assert check.compare(stored, result(import_seconds=(0.4, 0.3)))[0].status == "target missed"


def test_what_looks_worse_is_measured_again_and_its_best_run_counts(check: ModuleType) -> None:
    stored = result(a=1.0, b=1.0)
    runs = iter([result(a=1.5, b=1.1), result(a=1.1, b=1.5), result(a=9.0, b=9.0)])
    measured, compared = check.checked(stored, lambda: next(runs))
    assert [one.measured for one in compared] == [1.1, 1.1] and len(list(runs)) == 1
    assert [case["figure"] for case in measured["cases"]] == [1.1, 1.5], (
        "the best of many runs is no figure to store"
    )
    slow: Iterator[dict[str, Any]] = iter([result(a=1.5, b=1.0)] * 3)
    assert [one.status for one in check.checked(stored, lambda: next(slow))[1]] == ["worse", "same"]
    assert list(slow) == []


def test_the_command_names_what_is_worse_and_stores_only_what_is_not(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x_overhead.json").write_text(json.dumps(result(add=1.0)))
    monkeypatch.setattr(check, "RESULTS", tmp_path)
    now = {"figure": 1.5}
    monkeypatch.setattr(check, "measured_by_run", lambda name, quick: result(add=now["figure"]))
    app = check.typer.Typer()
    app.command()(check.check)
    bad = CliRunner().invoke(app, ["x_overhead", "--store"])
    assert bad.exit_code == 1 and "x_overhead: add (worse)" in bad.output
    assert json.loads((tmp_path / "x_overhead.json").read_text())["cases"][0]["figure"] == 1.0
    now["figure"] = 1.1
    good = CliRunner().invoke(app, ["x_overhead", "--store"])
    assert good.exit_code == 0 and "no figure is worse" in good.output
    assert json.loads((tmp_path / "x_overhead.json").read_text())["cases"][0]["figure"] == 1.1
    unknown = CliRunner().invoke(app, ["nothing"])
    assert unknown.exit_code == 2 and "x_overhead" in unknown.output
