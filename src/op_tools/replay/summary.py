"""What a replay of many calls comes to: its log, files, JSON, and the exit code."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from op_tools.replay.report import FAILED, GOOD, ItemReport, Row
from op_tools.results import COMPARISON_CSV_COLUMNS, TIME_CSV_COLUMNS
from op_tools.runs import DERIVED_LOGS
from op_tools.storage.log import Log
from op_tools.storage.views import CsvView

__all__ = [
    "ReplayLog", "as_json", "counted", "exit_code", "tell_unwritten", "write_comparisons", "write_times",
]  # fmt: skip

SAME, DIFFERS, USAGE, INTERNAL, NOTHING_COMPARED, INTERRUPTED = 0, 1, 2, 3, 5, 130
_EXTRA_COLUMNS = ("verdict", "reason", "item", "run")
_TIMES = ("forward_id", "forward_elasped", "backward_elasped", "unit")


def exit_code(reports: Sequence[ItemReport], *, compared: bool) -> int:
    """1 if anything failed, was refused or raised; 5 if nothing was compared although that was asked for."""
    if any(report.status in FAILED for report in reports):
        return DIFFERS
    if not reports or (compared and not any(report.status in GOOD for report in reports)):
        return NOTHING_COMPARED
    return SAME


def counted(reports: Iterable[ItemReport]) -> str:
    """'12 calls: 9 same, 2 pass, 1 fail'."""
    counts = Counter(report.status for report in reports)
    total = sum(counts.values())
    parts = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"{total} {'call' if total == 1 else 'calls'}{': ' + parts if parts else ''}"


class ReplayLog:
    """`<results>/op_replay_result/op_replay_info_pid<pid>_<time>.oplog`: keeps what was done, whatever ends the replay."""

    def __init__(self, results: str, *, times: bool) -> None:
        self._log = Log(Path(results, "op_replay_result"), DERIVED_LOGS["replay"], on_problem=tell_unwritten)
        self._times = times

    @property
    def problem(self) -> str:
        """Why rows could not be written; it has been said."""
        return self._log.problem

    def add(self, report: ItemReport) -> None:
        """Write the rows of a report; they are in the file when this returns."""
        self._log.extend(_log_rows(report, times=self._times))
        self._log.flush()

    def close(self) -> None:
        self._log.close()


def tell_unwritten(problem: str) -> None:
    """Say that results are lost, which is no reason to stop."""
    what = problem.partition(";")[0]
    print(f"op-tools: {what}; the replay goes on. --out names another folder.", file=sys.stderr)


def _log_rows(report: ItemReport, *, times: bool) -> list[Row]:
    """One row per compared value and, where times were asked for, per run; at least one, so that no call is missing."""
    where = {"item": report.item, "status": report.status}
    columns = (*COMPARISON_CSV_COLUMNS, *_EXTRA_COLUMNS)
    rows = [{**{key: row[key] for key in columns if key in row}, **where} for row in report.rows]
    if times or not rows:
        of_call = {"name": report.name, "verdict": report.status, "reason": report.reason}
        runs = report.times if times else []
        rows += [
            {**of_call, **{key: run[key] for key in _TIMES if key in run}, **where} for run in runs or [{}]
        ]
    return rows


def write_comparisons(results: str, reports: Iterable[ItemReport]) -> Path | None:
    rows = [{**row, "item": report.item} for report in reports for row in report.rows]
    columns = (*COMPARISON_CSV_COLUMNS, *_EXTRA_COLUMNS)
    return _write(Path(results, "op_autocompare_result"), "op_autocompare_info", columns, rows)


def write_times(results: str, reports: Iterable[ItemReport]) -> Path | None:
    rows = [row for report in reports for row in report.times]
    return _write(Path(results, "op_time_measure_result"), "op_elasped_info", TIME_CSV_COLUMNS, rows)


def _write(folder: Path, name: str, columns: Sequence[str], rows: Sequence[Row]) -> Path | None:
    if not rows:
        return None
    view = CsvView(
        folder / f"{name}_pid{os.getpid()}_{time.strftime('%Y-%m-%d-%H-%M-%S')}.csv", list(columns)
    )
    view.append(rows)
    return folder / view.path.name


def as_json(reports: Sequence[ItemReport], code: int) -> str:
    """One document; numbers that JSON does not have (NaN, infinities) as text."""
    items = [{key: value for key, value in vars(report).items() if key != "text"} for report in reports]
    counts = Counter(report.status for report in reports)
    return json.dumps({"exit_code": code, "counts": dict(counts), "items": _finite(items)}, indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
