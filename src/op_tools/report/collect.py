"""One pass over the logs of a run: the table of all rows, the summary that is shown first, and where the run came from."""

from __future__ import annotations

import json
import platform
import re
import time
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from op_tools.report.columnar import RowTable, number
from op_tools.report.tallies import (
    JUDGED,
    MOST_LINES,
    WRONG,
    Captures,
    MemoryTally,
    OperatorTally,
    StepTally,
    TimeTally,
    in_order,
    in_order_of_interest,
    reproduce_line,
    section_of,
    split_name,
    verdict_of,
    with_whole_numbers,
)
from op_tools.runs import DERIVED_LOGS, NOTHING, BadInput, Run
from op_tools.storage.log_reader import LogContents

__all__ = ["Collected", "collect"]

_RIGHT = frozenset({"same", "pass", "lower_precision"})
# Rows in the table. What needs attention is kept beyond this, the rest is counted only.
MOST_ROWS = 300_000
_FIGURES = ("error_over_bound", "max_abs_diff", "max_relative_diff", "cosine_similarity", "atol", "rtol")
_DEVICE = re.compile(r"@([a-z_]+(?::\d+)?)")
# Texts of arguments that are looked at for devices; the first ones name all that a run uses.
_MOST_LOOKED_AT = 2000
_FACTS = (
    "call_site", "module", "phase", "level", "forward_name", "reason", "error_info", "input", "output", "side",
    "status", "kind",
)  # fmt: skip


class Environment:
    """Gathers what logs and rows say about where they were made."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._logs: list[dict[str, Any]] = []
        self._ranks: set[Any] = set()
        self._hosts: set[str] = set()
        self._devices: set[str] = set()
        self._torch: set[str] = set()
        self._settings: dict[str, Any] = {}
        self._world_size = 1
        self._seen: set[str] = set()

    def add_log(self, tool: str, path: Path, contents: LogContents) -> None:
        """Note a log: whose it is, how many rows, how much of it is torn."""
        header = contents.header
        self._world_size = max(self._world_size, int(header.get("world_size") or 1))
        self._ranks.add((header.get("rank"), header.get("pid")))
        self._hosts |= {str(header["host"])} if header.get("host") else set()
        self._torch |= {str(header["torch"])} if header.get("torch") else set()
        if isinstance(header.get("settings"), dict):
            self._settings[tool] = header["settings"]
        self._logs.append(
            {
                "tool": tool, "file": path.name, "rows": len(contents.rows), "dropped": contents.dropped_bytes,
                "rank": header.get("rank"), "pid": header.get("pid"), "host": str(header.get("host") or ""),
                "started": str(header.get("started") or ""),
            }
        )  # fmt: skip

    def see(self, row: Mapping[str, Any]) -> None:
        """Take the devices from the texts of a row's arguments."""
        text = row.get("input")
        if isinstance(text, str) and len(self._seen) < _MOST_LOOKED_AT and text not in self._seen:
            self._seen.add(text)
            self._devices.update(_DEVICE.findall(text))

    def as_plain(self) -> dict[str, Any]:
        self._ask_captures()
        # What compares or replays captures afterwards is not the program.
        processes = {log["pid"] for log in self._logs if log["tool"] not in DERIVED_LOGS}
        return {
            "torch": sorted(self._torch), "devices": sorted(self._devices), "hosts": sorted(self._hosts),
            "ranks": len({rank for rank, _ in self._ranks}), "world_size": self._world_size,
            "processes": len(processes), "settings": self._settings, "logs": self._logs,
            "timed_with": sorted(self._timed_with()),
            "dropped": sum(log["dropped"] for log in self._logs), "captures": self._run.captures is not None,
            "python": platform.python_version(),
        }  # fmt: skip

    def _timed_with(self) -> set[str]:
        """Tools that were on in the processes whose times were measured: they slow operators down."""
        timed = {log["pid"] for log in self._logs if section_of(log["tool"]) == "time"}
        others = {log["tool"] for log in self._logs if log["pid"] in timed}
        return {tool for tool in others if section_of(tool) not in ("time", "memory")}

    def _ask_captures(self) -> None:
        """Captures say which torch and device made them."""
        if self._run.captures is None:
            return
        for path in islice(self._run.captures.rglob("input.pth.json"), 3):
            try:
                header = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue
            if isinstance(header, dict):
                self._torch |= {str(header["torch"])} if header.get("torch") else set()
                self._devices |= {str(header["device"])} if header.get("device") else set()


class Collected:
    """The rows and what they come to."""

    def __init__(self, run: Run, title: str) -> None:
        self.run = run
        self.title = title
        self.table = RowTable()
        self.environment = Environment(run)
        self.left_out = 0
        self._captures = Captures(run)
        self._verdicts: dict[str, Counter[str]] = {}
        self._operators = OperatorTally()
        self._times = TimeTally()
        self._steps = StepTally()
        self._memory = MemoryTally()
        self._first: dict[str, tuple[tuple[Any, ...], dict[str, Any], int]] = {}
        self._listed: dict[str, list[tuple[dict[str, Any], int]]] = {}

    # -- rows ------------------------------------------------------------------------------------------------

    def read(self) -> None:
        for tool in in_order_of_interest(self.run.logs):
            self._read(tool)

    def _read(self, tool: str) -> None:
        paths, logs = self.run.logs[tool], list(self.run.contents(tool))
        if tool in DERIVED_LOGS:
            # Made from the same captures each time: the newest is the one that counts.
            paths, logs = paths[-1:], logs[-1:]
        for path, contents in zip(paths, logs, strict=True):
            section = section_of(tool)
            contents.header = with_whole_numbers(contents.header)
            header = contents.header
            origin = {key: header.get(key) for key in ("pid", "rank", "started", "world_size")}
            self.environment.add_log(tool, path, contents)
            for order, row in enumerate(contents.rows):
                full = with_whole_numbers({**origin, **row})
                if section == "memory":
                    self._memory.add(full)
                else:
                    self._add(tool, section, full, order)

    def _add(self, tool: str, section: str, row: dict[str, Any], order: int) -> None:
        verdict = verdict_of(tool, row)
        self._verdicts.setdefault(tool, Counter())[verdict] += 1
        self.environment.see(row)
        bad = verdict in WRONG or verdict == "suspect"
        if section in JUDGED and (bad or verdict in _RIGHT):
            self._operators.add(row, verdict)
        if section == "time":
            self._steps.add_time(row, self._times.add(row))
        if bad or verdict == "lower_precision":
            self._steps.add_event(row, verdict)
        elif len(self.table) >= MOST_ROWS:
            self.left_out += 1
            return
        operator, value = split_name(row.get("name"))
        row["operator"], row["value"], row["verdict"] = operator, value, verdict
        row["capture"] = self._captures.path(row)
        index = self.table.block(tool).append(row)
        if bad:
            self._note(tool, row, index, order)

    def _note(self, tool: str, row: dict[str, Any], index: int, order: int) -> None:
        key = _when(tool, row, order)
        first = self._first.get(tool)
        if first is None or key < first[0]:
            self._first[tool] = (key, row, index)
        listed = self._listed.setdefault(tool, [])
        if len(listed) < MOST_LINES:
            listed.append((row, index))

    # -- the summary -----------------------------------------------------------------------------------------

    def verdicts(self, *tools: str) -> Counter[str]:
        """The verdicts of these tools, added up."""
        return sum((self._verdicts.get(tool, Counter()) for tool in tools), Counter[str]())

    def summary(self) -> dict[str, Any]:
        """What the first screen shows, as JSON holds it."""
        judges, overflows = self._tools_in(*JUDGED), self._tools_in("overflow")
        judged, born = self.verdicts(*judges), self.verdicts(*overflows)
        counts = self.verdicts(*self._verdicts)
        wrong = sum(judged[verdict] for verdict in WRONG)
        compared = wrong + sum(judged[verdict] for verdict in _RIGHT)
        births = born["NaN"] + born["Inf"]
        state = (
            "wrong" if wrong or births
            else "suspect" if judged["suspect"]
            else "lower" if judged["lower_precision"]
            else "right" if compared
            else "finite" if overflows
            else "unjudged"
        )  # fmt: skip
        return {
            "title": self.title, "run": str(self.run.path), "made": time.strftime("%Y-%m-%d %H:%M"),
            "rows": len(self.table), "left_out": self.left_out, "older_logs": self.run.older,
            "older": self.run.about_older(), "state": state, "wrong": wrong,
            "compared": compared, "births": births, "suspect": judged["suspect"],
            "lower": judged["lower_precision"],
            "wrong_operators": len(self._operators.wrong), "counts": in_order(counts),
            "tools": {tool: sum(verdicts.values()) for tool, verdicts in self._verdicts.items()},
            "first": self._first_of(*judges), "first_overflow": self._first_of(*overflows),
            "operators": self._operators.lines(), "steps": self._steps.lines(), "memory": self._memory.lines(),
            "total_ms": round(self._times.total, 4), "time_operators": self._times.operators(),
            "time_sites": self._times.sites(),
            "findings": {
                tool: {
                    "counts": in_order(self._verdicts[tool]),
                    "lines": [self._line(tool, row, index) for row, index in self._listed.get(tool, ())],
                }
                for tool in (*overflows, *self._tools_in("findings"))
            },
            "environment": self.environment.as_plain(),
        }  # fmt: skip

    def _tools_in(self, *sections: str) -> list[str]:
        """The tools with rows that belong into these sections of the report; what the first of them says counts most."""
        return [tool for tool in in_order_of_interest(self._verdicts) if section_of(tool) in sections]

    def _first_of(self, *tools: str) -> dict[str, Any] | None:
        for tool in tools:
            if tool in self._first:
                _, row, index = self._first[tool]
                return self._line(tool, row, index)
        return None

    def _line(self, tool: str, row: Mapping[str, Any], index: int) -> dict[str, Any]:
        """What is said of one row outside the table."""
        line = {
            "tool": tool, "row": self.table.row_number(tool, index), "operator": row["operator"],
            "value": row["value"], "verdict": row["verdict"],
        }  # fmt: skip
        numbers = ("step", "rank", "pid", "forward_id", *_FIGURES)
        line |= {name: number(name, row.get(name)) for name in numbers}
        line |= {name: str(row.get(name) or "") for name in _FACTS}
        line["reproduce"] = reproduce_line(row["capture"]) if row["capture"] else ""
        return line


def _when(tool: str, row: Mapping[str, Any], order: int) -> tuple[Any, ...]:
    """When a row came about. Ranks run the same steps side by side; processes of their own run one after another.

    A log is in the order of what happened. Numbers of calls are not: gradients go by that of the forward call.
    """
    suspect = row["verdict"] == "suspect"
    if tool == "diff":  # one log for all ranks and both runs, in the order of its own answer
        return suspect, order
    alone = (row.get("world_size") or 1) == 1
    return (
        suspect, str(row.get("started")) if alone else "", _int(row.get("step")), order, _int(row.get("rank")),
    )  # fmt: skip


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 1 << 62


def collect(run: Run, title: str = "") -> Collected:
    """Read a run. Raises BadInput (5) when its logs hold no row."""
    collected = Collected(run, title or f"op_tools: {run.path.resolve().name}")
    collected.read()
    if not len(collected.table) and not collected.summary()["memory"]:
        raise BadInput(
            f"{run.path} has nothing to report: its logs hold no row. Run the program with a tool on, for example "
            f"`ditorch run script.py --tool autocompare`, and report the results folder it names.",
            NOTHING,
        )
    return collected
