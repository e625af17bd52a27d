"""The report of a hundred thousand rows: seconds to write it, its size, and how long a browser takes to open it."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from op_tools.report import write_report
from op_tools.runs import open_run
from op_tools.storage.log import Log
from report import ROOT, Case, Options, Report

sys.path.insert(0, str(ROOT / "tools"))

from headless_browser import Browser, chromium_path

ROWS = 100_000
OPERATORS = (
    "linear",
    "layer_norm",
    "gelu",
    "softmax",
    "matmul",
    "add",
    "mul",
    "dropout",
    "cross_entropy",
    "embedding",
)
LAYERS, SITES = 48, 400


def _row(number: int, chance: random.Random) -> dict[str, Any]:
    """A row as one of a large model: many layers, many source lines, figures that differ in every row."""
    operator = chance.choice(OPERATORS)
    line = chance.randrange(SITES)
    return {
        "forward_id": number, "name": f"torch.nn.functional.{operator}", "step": number // 2000, "thread": 1, "rank": 0,
        "world_size": 1, "level": "api", "phase": chance.choice(("forward", "backward")), "forward_name": "",
        "call_site": f"/home/someone/project/model/layers.py:{line} forward: hidden = self.block_{line}(hidden, mask)",
        "module": f"Model.layers.{chance.randrange(LAYERS)}.{operator}",
    }  # fmt: skip


def _compared(number: int, chance: random.Random) -> dict[str, Any]:
    row = _row(number, chance)
    verdict = chance.choices(("same", "pass", "fail"), (70, 29, 1))[0]
    error = {"same": float("nan"), "pass": chance.random(), "fail": 1 + 100 * chance.random()}[verdict]
    reason = (
        f"{number} of 65536 elements are off, up to {error:.0f} times the bound" if verdict == "fail" else ""
    )
    return {
        **row, "name": f"{row['name']} output", "verdict": verdict, "reason": reason, "error_over_bound": error,
        "allclose": verdict != "fail", "max_abs_diff": chance.random() * 1e-4, "max_relative_diff": chance.random(),
        "cosine_similarity": 1 - chance.random() * 1e-7, "atol": 1e-5, "rtol": 1e-5, "error_info": "",
    }  # fmt: skip


def _timed(number: int, chance: random.Random) -> dict[str, Any]:
    shape = f"float32[{chance.choice((8, 16, 32))}, {chance.randrange(1, 512)}, 1024]@dev:0"
    return {
        **_row(number, chance), "forward_elasped": chance.random(), "backward_elasped": 2 * chance.random(),
        "unit": "ms", "input": f"({shape}, {shape})", "output": shape, "grad_inputs": [], "grad_outputs": [],
    }  # fmt: skip


def write_run(folder: Path, rows: int) -> None:
    """Logs of a run with so many rows, half of them compared and half of them timed."""
    chance = random.Random(0)
    for name, make in (("op_autocompare_info", _compared), ("op_elasped_info", _timed)):
        with Log(folder, name) as log:
            log.extend([make(number, chance) for number in range(rows // 2)])


def opening_times(path: Path) -> tuple[float, float]:
    """Seconds from the start of the navigation until the first screen is there, and until the rows are."""
    with Browser() as browser:
        browser.open(path)
        marks = browser.evaluate(
            "performance.getEntriesByType('mark').map(mark => [mark.name, mark.startTime])"
        )
    times = dict(marks)
    return times["first-screen"] / 1e3, times["rows-ready"] / 1e3


def cases(options: Options) -> list[Case]:
    """Each measured a few times; the figure is the median."""
    rounds, rows = (1, 5000) if options.quick else (5, ROWS)
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder), rows)
        seconds: list[float] = []
        processor: list[float] = []
        for _ in range(rounds):
            options.say(f"writing the report of {rows:,} rows ...")
            started, busy = time.perf_counter(), time.process_time()
            written = write_report(open_run(folder), Path(folder, "report.html"))
            seconds.append(time.perf_counter() - started)
            processor.append(time.process_time() - busy)
        found = [
            _case("write, s", seconds, 10.0),
            _case("write, s of processor time", processor),
            Case(
                "size, MB", written.size / 1e6, [f"{written.size / 1e6:.2f}"], 15.0, {"bytes": written.size}
            ),
        ]
        if chromium_path() is None:
            options.say("no Chromium on the PATH: opening is not measured")
            return found
        options.say("opening it ...")
        opened = [opening_times(written.path) for _ in range(rounds)]
        found.append(_case("first screen, s", [first for first, _ in opened], 2.0))
        found.append(_case("all rows ready, s", [ready for _, ready in opened], 2.0))
        return found


def _case(name: str, values: list[float], target: float | None = None) -> Case:
    middle = sorted(values)[len(values) // 2]
    return Case(name, middle, [f"{middle:.3f}"], target, {"values": values})


def measure(options: Options) -> Report:
    """The table of the runner."""
    notes = {"rows": 5000 if options.quick else ROWS, "quick": options.quick}
    return Report("The report of a run: writing, size, opening", ["median"], cases(options), notes)


if __name__ == "__main__":
    import run

    run.main(["report_size", *sys.argv[1:]])
