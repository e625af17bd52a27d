"""Hold the cheap benchmarks against their stored figures: `make bench-check`, or `python benchmarks/check.py [NAMES]`.

A figure is worse where it is more than a fifth above the stored one, or above a target that the stored one met. One that
looks worse is measured again, and is accused only where every run says so. Exit code 0: none is worse; 1: some are; 2: usage;
3: a benchmark failed. `--store` keeps the figures of the last run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from report import processor, write_json

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
NAMES = ("op_tools_overhead", "device_overhead", "shim_overhead")
TOLERANCE = 0.2
# How often a benchmark with a figure that looks worse is measured again.
REPEATS = 2

Stored = Mapping[str, Any]
Status = Literal["same", "better", "worse", "target missed", "new", "gone"]
BAD: tuple[Status, ...] = ("worse", "target missed", "gone")


@dataclass(frozen=True)
class Compared:
    """One figure now and then."""

    name: str
    stored: float | None
    measured: float | None
    target: float | None
    status: Status

    @property
    def ratio(self) -> float | None:
        if self.stored is None or self.measured is None or self.stored <= 0:
            return None
        return self.measured / self.stored


def compare(stored: Stored, measured: Stored, tolerance: float = TOLERANCE) -> list[Compared]:
    """Every case of two results of one benchmark, in the order of the stored one; new cases behind."""
    before = {case["name"]: case for case in stored["cases"]}
    now = {case["name"]: case for case in measured["cases"]}
    found = []
    for name in (*before, *(name for name in now if name not in before)):
        old, new = before.get(name, {}).get("figure"), now.get(name, {}).get("figure")
        target = now.get(name, before.get(name, {})).get("target")
        found.append(Compared(name, old, new, target, _status(name, old, new, target, tolerance)))
    return found


def _status(
    name: str, old: float | None, new: float | None, target: float | None, tolerance: float
) -> Status:
    if new is None:
        return "gone"
    missed = target is not None and new > target
    if old is None:
        return "target missed" if missed else "new"
    if missed and target is not None and old <= target:
        return "target missed"
    if name.endswith("seconds"):  # of the machine as much as of the program: the target alone counts
        return "same"
    if new > old * (1 + tolerance):
        return "worse"
    return "better" if new < old / (1 + tolerance) else "same"


def best_of(first: Stored, again: Stored) -> dict[str, Any]:
    """Of two results of one benchmark, the smaller figure of every case."""
    others = {case["name"]: case for case in again["cases"]}
    cases = [
        min(case, others.get(case["name"], case), key=lambda one: one["figure"]) for case in first["cases"]
    ]
    return {**first, "cases": cases}


def checked(
    stored: Stored, measure: Callable[[], Stored], tolerance: float = TOLERANCE, repeats: int = REPEATS
) -> tuple[Stored, list[Compared]]:
    """Measure until nothing is worse, or often enough to accuse; the last run, and what the best figures come to."""
    last = best = measure()
    compared = compare(stored, best, tolerance)
    for _ in range(repeats):
        if not any(one.status in BAD for one in compared):
            break
        last = measure()
        best = best_of(best, last)
        compared = compare(stored, best, tolerance)
    return last, compared


def table_of(name: str, compared: list[Compared]) -> Table:
    table = Table(title=name)
    table.add_column("case", no_wrap=True)
    for column in ("stored", "now", "now / stored", "target"):
        table.add_column(column, justify="right")
    table.add_column("")

    def shown(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    for one in compared:
        cells = [
            one.name,
            shown(one.stored),
            shown(one.measured),
            shown(one.ratio),
            shown(one.target),
            one.status,
        ]
        table.add_row(
            *cells, style="red" if one.status in BAD else "green" if one.status == "better" else None
        )
    return table


def measured_by_run(name: str, quick: bool) -> Stored:
    """In an interpreter of its own, with one thread: what one benchmark changes does not reach the next."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [
            sys.executable,
            str(HERE / "run.py"),
            name,
            "--json",
            str(path),
            *(["--quick"] if quick else []),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode or not path.exists():
            said = (done.stderr or done.stdout).strip()[-2000:]
            raise RuntimeError(f"{name} failed with exit code {done.returncode}: {said}")
        result: Stored = json.loads(path.read_text(encoding="utf-8"))
        return result


def check(
    names: Annotated[list[str] | None, typer.Argument(help="benchmarks; default: the cheap ones")] = None,
    tolerance: Annotated[float, typer.Option(help="how much worse a figure may be, as a share")] = TOLERANCE,
    repeats: Annotated[int, typer.Option(help="measure again so often what looks worse")] = REPEATS,
    quick: Annotated[bool, typer.Option("--quick", help="fewer rounds: a smoke test, not a figure")] = False,
    store: Annotated[bool, typer.Option("--store", help="keep the new figures where none is worse")] = False,
) -> None:
    """Run benchmarks and compare them with their stored figures."""
    console = Console(width=min(Console().width, 120) if Console().is_terminal else 120)
    worse: list[str] = []
    for name in names or NAMES:
        path = RESULTS / f"{name}.json"
        if not path.exists():
            known = ", ".join(sorted(one.stem for one in RESULTS.glob("*_overhead.json")))
            raise typer.BadParameter(f"no figures of {name!r} are stored; there are, among others: {known}")
        stored = json.loads(path.read_text(encoding="utf-8"))
        if (then := stored["environment"].get("processor")) != processor():
            console.print(f"{name}: stored on {then}; ratios of another machine may differ")
        try:
            measured, compared = checked(stored, partial(measured_by_run, name, quick), tolerance, repeats)
        except RuntimeError as error:
            console.print(f"[red]{error}[/]")
            raise typer.Exit(3) from error
        console.print(table_of(name, compared))
        bad = [f"{name}: {one.name} ({one.status})" for one in compared if one.status in BAD]
        worse += bad
        if store and not bad:
            write_json(path, dict(measured))
            console.print(f"stored: {path}")
    if worse:
        console.print(f"[red]worse than stored:[/] {'; '.join(worse)}")
        raise typer.Exit(1)
    console.print("no figure is worse than stored")


def main(arguments: list[str] | None = None) -> None:
    app = typer.Typer(add_completion=False)
    app.command()(check)
    app(arguments)


if __name__ == "__main__":
    main()
