"""Logs of 1,000 ranks as one report: seconds, memory over all processes, size, and whether the page names what is wrong."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from op_tools.storage.log import Log
from report import ROOT, Case, Options, Report

sys.path.insert(0, str(ROOT / "tools"))

from headless_browser import Browser, chromium_path

RANKS, ROWS = 1000, 10_000_000
OPERATORS = (
    "linear", "layer_norm", "gelu", "softmax", "matmul", "add", "mul", "dropout", "cross_entropy", "embedding", "silu",
    "rms_norm", "scaled_dot_product_attention", "cat", "transpose", "sum", "mean", "exp", "index_select", "sigmoid",
)  # fmt: skip
STEPS, LAYERS, SITES = 100, 48, 400
FOLDERS = {
    "op_autocompare_info": "op_autocompare_result", "op_elasped_info": "op_time_measure_result",
    "op_overflow_check_info": "op_overflow_check_result",
}  # fmt: skip


class Faults:
    """What is wrong with a run of so many ranks: three operators on two of them, and files and ranks that differ."""

    def __init__(self, ranks: int) -> None:
        def at(share: float) -> int:
            return int(ranks * share)

        self.wrong = {(at(0.417), "silu"), (at(0.417), "rms_norm"), (at(0.8), "matmul")}
        self.slow_rank = at(0.1)
        self.slow_operator = (at(0.3), "softmax")
        self.overflowing = (at(0.55), "exp")
        self.stopped, self.damaged, self.garbage, self.missing, self.empty = map(
            at, (0.7, 0.9, 0.2, 0.95, 0.6)
        )


def _templates() -> list[dict[str, Any]]:
    """Rows of a large model before their figures: operators, source lines, layers, shapes."""
    chance = random.Random(0)
    found = []
    for line in range(SITES):
        operator = OPERATORS[line % len(OPERATORS)]
        shape = f"bfloat16[{chance.choice((8, 16))}, {chance.randrange(1, 512)}, 1024]@dev:0"
        found.append(
            {
                "name": f"torch.nn.functional.{operator}", "level": "api", "forward_name": "", "error_info": "",
                "call_site": f"/home/someone/project/model/layers.py:{line} forward: hidden = self.block_{line}(hidden)",
                "module": f"Model.layers.{line % LAYERS}.{operator}", "input": f"({shape}, {shape})", "thread": 1,
                "phase": "forward" if line % 3 else "backward",
            }
        )  # fmt: skip
    return found


_JUDGEMENT = {"reason": "", "allclose": True, "cosine_similarity": 1.0, "atol": 1e-3, "rtol": 1e-3}
_COMPARED = [{**row, **_JUDGEMENT, "name": f"{row['name']} output"} for row in _templates()]
_TIMED = [
    {**row, "unit": "ms", "output": row["input"], "grad_inputs": [], "grad_outputs": []}
    for row in _templates()
]


class _Rank:
    """The rows of one rank: two thirds compared, one third timed, and what overflows."""

    def __init__(self, rank: int, ranks: int, faults: Faults) -> None:
        self.origin = {"rank": rank, "world_size": ranks}
        self.rank = rank
        self.faults = faults
        self.wrong = {operator for where, operator in faults.wrong if where == rank}
        self.slow = set(OPERATORS) if rank == faults.slow_rank else set()
        self.slow |= {faults.slow_operator[1]} if rank == faults.slow_operator[0] else set()
        self.compared: list[dict[str, Any]] = []
        self.timed: list[dict[str, Any]] = []
        self.births: list[dict[str, Any]] = []

    def make(self, count: int) -> None:
        """Rows in the order of the steps."""
        chance = random.Random(self.rank).random
        steps = STEPS // 2 if self.rank == self.faults.stopped else STEPS
        for number in range(count):
            site = int(chance() * SITES)
            add = self._add_timed if number % 3 == 2 else self._add_compared
            add(site, OPERATORS[site % len(OPERATORS)], number, number * steps // count, chance())

    def _add_compared(self, site: int, operator: str, number: int, step: int, chance: float) -> None:
        row: dict[str, Any] = {**_COMPARED[site], **self.origin, "forward_id": number, "step": step}
        if operator in self.wrong and step > STEPS // 4 and chance < 0.3:
            error = 1 + 100 * chance
            row |= {"verdict": "fail", "allclose": False, "reason": f"up to {error:.0f} times the bound"}
        else:
            row["verdict"] = "same" if chance < 0.6 else "pass" if chance < 0.999 else "lower_precision"
            error = chance if chance >= 0.6 else math.nan
        row["error_over_bound"] = error
        row["max_abs_diff"], row["max_relative_diff"] = chance * 1e-4, chance
        self.compared.append(row)
        if (self.rank, operator) == self.faults.overflowing and step > STEPS // 2 and chance < 0.6:
            self.births.append({**_TIMED[site], **self.origin, "step": step, "status": "born", "kind": "NaN"})

    def _add_timed(self, site: int, operator: str, number: int, step: int, chance: float) -> None:
        usual = (
            (2 if operator in self.slow else 1)
            * (0.02 + 0.0005 * (site % len(OPERATORS)))
            * (0.9 + 0.2 * chance)
        )
        self.timed.append(
            {
                **_TIMED[site], **self.origin, "forward_id": number, "step": step, "forward_elasped": usual,
                "backward_elasped": 2 * usual,
            }
        )  # fmt: skip


def write_rank(folder: Path, rank: int, ranks: int, rows: int) -> None:
    """The logs of one rank."""
    faults = Faults(ranks)
    if rank == faults.missing:
        return
    about = {"run_id": "rank_logs", "torch": "2.13.0"}

    def write(name: str, found: list[dict[str, Any]]) -> Path:
        with Log(folder / FOLDERS[name], name, rank=rank, world_size=ranks, about=about) as log:
            log.extend(found)
            return log.path

    made = _Rank(rank, ranks, faults)
    made.make(0 if rank == faults.empty else rows)
    compared = write("op_autocompare_info", made.compared)
    write("op_elasped_info", made.timed)
    write("op_overflow_check_info", made.births)
    size = compared.stat().st_size
    if rank == faults.stopped:
        os.truncate(compared, size - 100)
    elif rank == faults.damaged:
        with compared.open("r+b") as file:
            file.seek(size // 2)
            file.write(b"\xff" * 4096)
    elif rank == faults.garbage:
        compared.write_bytes(b"no log at all\n" * 100)


def write_ranks(folder: Path, ranks: int, rows: int, processes: int = 1) -> None:
    """The logs of all ranks, `rows` in total."""
    tasks = [(folder, rank, ranks, rows // ranks) for rank in range(ranks)]
    if processes <= 1:
        for task in tasks:
            write_rank(*task)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.starmap(write_rank, tasks, chunksize=10)


class PeakMemory(threading.Thread):
    """The most memory that a process and its children had together, looked at ten times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peak = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.1):
            self.peak = max(self.peak, sum(map(_resident, [self.pid, *_below(self.pid)])))


def _below(pid: int) -> list[int]:
    """The processes that one started, and those they did."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(one for child in children for one in _below(child))]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def report_of(folder: Path, *options: str) -> tuple[float, int, dict[str, Any]]:
    """`op-tools report` in a process of its own: seconds, peak memory of all its processes, what it printed."""
    command = [sys.executable, "-m", "op_tools.cli", "report", str(folder), "--json", *options]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watch = PeakMemory(process.pid)
        watch.start()
        out, _ = process.communicate()
        seconds = time.perf_counter() - started
        watch.done.set()
        watch.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
    return seconds, watch.peak, json.loads(out)


def missing_from(printed: dict[str, Any], ranks: int) -> list[str]:
    """What the report should say and does not."""
    faults, found = Faults(ranks), printed["ranks"]
    wrong = {
        (line["operator"].rpartition(".")[2], line["failed_on"])
        for line in printed["operators"]
        if line["fail"]
    }
    odd = {(one["kind"], one["rank"], one["operator"].rpartition(".")[2]) for one in found["odd"]}
    checks = {
        "wrong operators and their ranks": wrong == {(name, str(rank)) for rank, name in faults.wrong},
        "odd: wrong": {(rank, name) for kind, rank, name in odd if kind == "wrong"} == faults.wrong,
        "odd: time": {(rank, name) for kind, rank, name in odd if kind == "time"}
        == {(faults.slow_rank, ""), faults.slow_operator},
        "odd: NaN": {(rank, name) for kind, rank, name in odd if kind == "births"} == {faults.overflowing},
        "odd: last step": {rank for kind, rank, _ in odd if kind == "last_step"} == {faults.stopped},
        "rank without logs": found["missing"] == str(faults.missing),
        "rank without rows": found["empty"] == str(faults.empty),
        "cut log": found["cut"] == str(faults.stopped),
        "damaged log": found["damaged"] == str(faults.damaged),
        "what is no log": found["unreadable"] == str(faults.garbage),
    }
    return [name for name, right in checks.items() if not right]


def cases(options: Options) -> list[Case]:
    ranks, rows = (50, 50_000) if options.quick else (RANKS, ROWS)
    with tempfile.TemporaryDirectory(prefix="rank-logs-") as name:
        folder = Path(name)
        options.say(f"writing {rows:,} rows of {ranks:,} ranks ...")
        write_ranks(folder, ranks, rows, processes=os.cpu_count() or 1)
        size = sum(path.stat().st_size for path in folder.rglob("*.oplog"))
        options.say(f"{size / 1e9:.2f} GB of logs; reporting ...")
        # Quick runs are few rows, of which all would be shown by one process.
        many = ("--ray", "local") if options.quick else ()
        seconds, peak, printed = report_of(folder, *many)
        again, _, _ = report_of(folder, *many)
        missing = missing_from(printed, ranks)
        found = [
            Case("report, s", seconds, [f"{seconds:.1f}"], 120.0, {"log_bytes": size}),
            Case("report again, s", again, [f"{again:.1f}"]),
            Case("memory of all processes, GB", peak / 1e9, [f"{peak / 1e9:.2f}"], 2.0, {"bytes": peak}),
            Case("page, MB", printed["bytes"] / 1e6, [f"{printed['bytes'] / 1e6:.2f}"], 15.0),
            Case("facts that the page lacks", len(missing), [str(len(missing))], 0, {"missing": missing}),
        ]
        if chromium_path() is None:
            options.say("no Chromium on the PATH: opening is not measured")
            return found
        with Browser() as browser:
            browser.open(Path(printed["path"]))
            marks = dict(
                browser.evaluate(
                    "performance.getEntriesByType('mark').map(mark => [mark.name, mark.startTime])"
                )
            )
        first = marks["first-screen"] / 1e3
        return [*found, Case("first screen, s", first, [f"{first:.3f}"], 2.0)]


def measure(options: Options) -> Report:
    """The table of the runner."""
    ranks, rows = (50, 50_000) if options.quick else (RANKS, ROWS)
    notes = {"ranks": ranks, "rows": rows, "quick": options.quick}
    return Report("Logs of many ranks as one report", ["value"], cases(options), notes)


if __name__ == "__main__":
    import run

    run.main(["rank_logs", *sys.argv[1:]])
