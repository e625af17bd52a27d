"""What a report holds: the summary that is shown first, and the table of rows behind it.

Of a few ranks, or of little, the table has every row and one process reads the logs. Of many ranks it has the rows that
need attention, the earliest and the worst of each operator, and several processes or a cluster read the logs.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from op_tools.report.columnar import RowTable, number
from op_tools.report.lines import environment_of, memory_lines, operator_lines, step_lines, time_lines
from op_tools.report.merge import merged, parts_of
from op_tools.report.ranks import ranks_of
from op_tools.report.rows import (
    ATTENTION,
    JUDGED,
    LABELS,
    RIGHT,
    WRONG,
    in_order,
    in_order_of_interest,
    reproduce_line,
    section_of,
)
from op_tools.report.scan import scan
from op_tools.report.summary import KeptRow, RunSummary
from op_tools.runs import NOTHING, BadInput, Run

__all__ = ["Collected", "collect"]

# Rows in the table. What needs attention is kept beyond this, the rest is counted only.
MOST_ROWS = 300_000
# Of so many ranks, or of so many bytes, the table has every row.
FEW_RANKS = 8
LITTLE = 64 << 20
_MOST_WORKERS = 8
_FIGURES = ("error_over_bound", "max_abs_diff", "max_relative_diff", "cosine_similarity", "atol", "rtol")
_FACTS = (
    "call_site", "module", "phase", "level", "forward_name", "reason", "error_info", "input", "output", "side",
    "status", "kind",
)  # fmt: skip

Progress = Callable[[int, int], None]


class Collected:
    """The rows and what they come to."""

    def __init__(self, runs: Sequence[Run], title: str) -> None:
        self.runs = runs
        self.title = title
        self.table = RowTable()
        self.found = RunSummary()
        self.selected = False

    def read(self, workers: int | None, ray: str | None, progress: Progress | None) -> None:
        """Read the logs; in other processes where there is much to read."""
        parts = parts_of(self.runs)
        few = len(parts) <= FEW_RANKS or sum(part.size for part in parts) <= LITTLE
        for tool in in_order_of_interest({tool for run in self.runs for tool in run.logs}):
            self.table.block(tool)
        if few and ray is None:
            for done, part in enumerate(parts, 1):
                self.found.merge(scan(part.logs, self._take))
                if progress is not None:
                    progress(done, len(parts))
            return
        if workers is None:
            workers = 0 if ray is not None else min(_cpus(), _MOST_WORKERS)
        self.found = merged(parts, workers=workers, ray=ray, progress=progress)
        self._take_kept()
        self.selected = True

    def _take(self, tool: str, row: dict[str, Any]) -> int:
        """A row for the table, unless that is full and the row says nothing."""
        if row["verdict"] not in ATTENTION and len(self.table) >= MOST_ROWS:
            return -1
        return self.table.block(tool).append(row)

    def _take_kept(self) -> None:
        """Only the rows that the summary kept."""
        rows = [kept for rows in self.found.first.values() for kept in rows]
        rows += [kept for best in self.found.best.values() for kept in (*best.earliest, *best.worst)]
        indices: dict[Any, int] = {}
        for kept in sorted(rows, key=lambda kept: kept.when):
            if kept.identity not in indices:
                indices[kept.identity] = self.table.block(kept.tool).append(kept.row)
            kept.index = indices[kept.identity]

    # -- the summary -----------------------------------------------------------------------------------------

    def verdicts(self, *tools: str) -> Counter[str]:
        """The verdicts of these tools, added up."""
        return sum((Counter(self.found.verdicts.get(tool)) for tool in tools), Counter[str]())

    def summary(self) -> dict[str, Any]:
        """What the first screen shows, as JSON holds it."""
        found, operators = self.found, self.found.operators()
        judges, overflows = self._tools_in(*JUDGED), self._tools_in("overflow")
        judged, born = self.verdicts(*judges), self.verdicts(*overflows)
        counts = self.verdicts(*found.verdicts)
        wrong = sum(judged[verdict] for verdict in WRONG)
        compared = wrong + sum(judged[verdict] for verdict in RIGHT)
        births = born["NaN"] + born["Inf"]
        lower = sum(judged[label] for label in LABELS)
        state = (
            "wrong" if wrong or births
            else "suspect" if judged["suspect"]
            else "lower" if lower
            else "right" if compared
            else "finite" if overflows
            else "unjudged"
        )  # fmt: skip
        captures = [run.captures for run in self.runs if run.captures is not None]
        return {
            "title": self.title, "run": ", ".join(str(run.path) for run in self.runs),
            "made": time.strftime("%Y-%m-%d %H:%M"), "rows": len(self.table),
            "left_out": sum(counts.values()) - len(self.table), "selected": self.selected,
            "older_logs": sum(run.older for run in self.runs),
            "older": "\n".join(filter(None, (run.about_older() for run in self.runs))), "state": state, "wrong": wrong,
            "compared": compared, "births": births, "suspect": judged["suspect"],
            "lower": lower, "labels": list(LABELS),
            "wrong_operators": sum(one.wrong > 0 for one in operators.values()), "counts": in_order(counts),
            "tools": {tool: sum(found.verdicts[tool].values()) for tool in in_order_of_interest(found.verdicts)},
            "first": self._first_of(*judges), "first_overflow": self._first_of(*overflows),
            "operators": operator_lines(found, operators), "steps": step_lines(found.steps),
            "memory": memory_lines(found.memory, found.memory_start), **time_lines(found, operators),
            "findings": {
                tool: {
                    "counts": in_order(found.verdicts[tool]),
                    "lines": [self._line(kept) for kept in found.first.get(tool, ())],
                }
                for tool in (*overflows, *self._tools_in("findings"))
            },
            "ranks": ranks_of(found), "environment": environment_of(found, captures),
        }  # fmt: skip

    def _tools_in(self, *sections: str) -> list[str]:
        """The tools with rows that belong into these sections of the report; what the first of them says counts most."""
        with_rows = [tool for tool, verdicts in self.found.verdicts.items() if verdicts]
        return [tool for tool in in_order_of_interest(with_rows) if section_of(tool) in sections]

    def _first_of(self, *tools: str) -> dict[str, Any] | None:
        return next(
            (self._line(self.found.first[tool][0]) for tool in tools if tool in self.found.first), None
        )

    def _line(self, kept: KeptRow) -> dict[str, Any]:
        """What is said of one row outside the table."""
        row = kept.row
        line = {
            "tool": kept.tool, "row": self.table.row_number(kept.tool, kept.index), "operator": row["operator"],
            "value": row["value"], "verdict": row["verdict"],
        }  # fmt: skip
        numbers = ("step", "rank", "pid", "forward_id", *_FIGURES)
        line |= {name: number(name, row.get(name)) for name in numbers}
        line |= {name: str(row.get(name) or "") for name in _FACTS}
        line["reproduce"] = reproduce_line(row["capture"]) if row["capture"] else ""
        return line


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def collect(
    run: Run | Sequence[Run],
    title: str = "",
    *,
    workers: int | None = None,
    ray: str | None = None,
    progress: Progress | None = None,
) -> Collected:
    """Read a run, or several as one. Raises BadInput (5) when the logs hold no row, or (2) when none can be read."""
    runs = [run] if isinstance(run, Run) else list(run)
    names = ", ".join(run.path.resolve().name for run in runs)
    collected = Collected(runs, title or f"op_tools: {names}")
    collected.read(workers, ray, progress)
    if not any(collected.found.verdicts.values()) and not collected.found.memory:
        problems = [line.problem for line in collected.found.logs if line.problem]
        if problems:
            raise BadInput(f"{runs[0].path} cannot be read: {problems[0]}")
        raise BadInput(
            f"{runs[0].path} has nothing to report: its logs hold no row. Run the program with a tool on, for example "
            f"`ditorch run script.py --tool autocompare`, and report the results folder it names.",
            NOTHING,
        )
    return collected
