"""What the rows of a run come to: what each is about, counts, worst operators, steps, times, memory, captures."""

from __future__ import annotations

import math
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from op_tools.registry import by_section
from op_tools.runs import DERIVED_LOGS, Run
from op_tools.storage.files import safe_name

_WHOLE_NUMBERS = ("pid", "rank", "step", "forward_id", "world_size")
# Verdicts of rows that say: this is wrong.
WRONG = frozenset({"fail", "error", "refused", "NaN", "Inf"})
_ORDER = (
    "fail", "error", "refused", "NaN", "Inf", "suspect", "lower_precision", "tool error", "pass", "same", "skipped",
)  # fmt: skip
# How the timeline marks a verdict; all others that need attention are failures.
_EVENTS = {"lower_precision": "lower_precision", "suspect": "lower_precision", "NaN": "nan", "Inf": "nan"}
_WORST = ("error_over_bound", "max_abs_diff")
MOST_LINES = 20
MOST_TIMES = 12
MOST_POINTS = 400
# Sections of tools whose rows have verdicts.
JUDGED = ("operators", "findings")


def with_whole_numbers(row: dict[str, Any]) -> dict[str, Any]:
    """The same row. Logs may come from elsewhere: what should count and does not is taken out."""
    for name in _WHOLE_NUMBERS:
        value = row.get(name)
        if value is not None and not isinstance(value, int):
            row[name] = None
    return row


def split_name(name: Any) -> tuple[str, str]:
    """`torch.add output[0]` -> operator and value. Names of calls have no blank."""
    operator, _, value = str(name or "").partition(" ")
    return operator, value


def operator_of(row: Mapping[str, Any]) -> str:
    return split_name(row.get("name"))[0]


def short_site(call_site: str) -> str:
    """`/a/b/model.py:64 forward: y = f(x)` -> `model.py:64`."""
    return call_site.split(" ", 1)[0].rpartition("/")[2]


def reproduce_line(capture: str) -> str:
    """The command that writes a captured call as one Python file."""
    return f"op-tools reproduce {shlex.quote(capture)}"


def section_of(tool: str) -> str:
    """The section of the report that a tool's rows belong to. What compares captures afterwards lists what it found."""
    if tool in DERIVED_LOGS:
        return "findings"
    found = by_section().get(tool)
    return found.report_section if found is not None else "rows"


def in_order_of_interest(tools: Iterable[str]) -> list[str]:
    """Tools in the order in which what they say counts: verdicts first, of those that of the program before later ones."""
    sections = list(by_section())
    derived = list(DERIVED_LOGS)

    def rank_of(tool: str) -> tuple[Any, ...]:
        orders = ((JUDGED, section_of(tool)), (derived, tool), (sections, tool))
        return tuple(order.index(word) if word in order else len(order) for order, word in orders)

    return sorted(tools, key=rank_of)


def verdict_of(tool: str, row: Mapping[str, Any]) -> str:
    """One word for what a row says: a verdict, what was born in an overflow, or that the tool itself failed."""
    verdict = row.get("verdict")
    if verdict:
        return str(verdict)
    if row.get("status") == "born" and section_of(tool) == "overflow":
        return str(row.get("kind") or "NaN")
    if str(row.get("error_info") or "").startswith("tool error"):
        return "tool error"
    return str(row.get("status") or "") if tool in DERIVED_LOGS else ""


def in_order(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Verdicts with their numbers, the bad ones first."""
    ordered = [(name, counts[name]) for name in _ORDER if counts.get(name)]
    return ordered + sorted((name, count) for name, count in counts.items() if name and name not in _ORDER)


def finite(value: Any) -> float | None:
    """A number that can be added and compared, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


@dataclass
class _Operator:
    compared: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)
    first_step: Any = None


class OperatorTally:
    """How often each operator was judged and how it came out."""

    def __init__(self) -> None:
        self._found: dict[str, _Operator] = {}

    def add(self, row: Mapping[str, Any], verdict: str) -> None:
        operator = self._found.setdefault(operator_of(row), _Operator())
        operator.compared += 1
        operator.verdicts[verdict] += 1
        if verdict in WRONG and operator.first_step is None:
            operator.first_step = row.get("step")
        for column in _WORST:
            value = row.get(column)
            if isinstance(value, float) and not math.isnan(value):
                operator.worst[column] = max(value, operator.worst.get(column, 0.0))

    @property
    def wrong(self) -> list[str]:
        """Operators with something wrong, the worst first."""
        return [line["operator"] for line in self.lines(len(self._found)) if line["fail"]]

    def lines(self, most: int = MOST_LINES) -> list[dict[str, Any]]:
        """The worst operators: by failures, then by error over bound."""
        lines = []
        for name, one in self._found.items():
            wrong = sum(one.verdicts[verdict] for verdict in WRONG)
            if wrong or one.verdicts["lower_precision"] or "error_over_bound" in one.worst:
                lines.append(
                    {
                        "operator": name, "compared": one.compared, "fail": wrong,
                        "lower_precision": one.verdicts["lower_precision"], "first_step": one.first_step,
                        **{column: one.worst.get(column) for column in _WORST},
                    }
                )  # fmt: skip
        lines.sort(
            key=lambda line: (-line["fail"], -line["lower_precision"], -(line["error_over_bound"] or 0.0))
        )
        return lines[:most]


class TimeTally:
    """Time by operator and by call site, forward and backward."""

    def __init__(self) -> None:
        self._operators: dict[tuple[str, ...], list[float]] = {}
        self._sites: dict[tuple[str, ...], list[float]] = {}

    def add(self, row: Mapping[str, Any]) -> float:
        """Count a measured row; its milliseconds."""
        forward = finite(row.get("forward_elasped")) or 0.0
        backward = finite(row.get("backward_elasped")) or 0.0
        name, call_site = operator_of(row), str(row.get("call_site") or "")
        for table, key in ((self._operators, (name,)), (self._sites, (name, call_site))):
            calls, before, after = table.get(key, (0, 0.0, 0.0))
            table[key] = [calls + 1, before + forward, after + backward]
        return forward + backward

    @property
    def total(self) -> float:
        return sum(forward + backward for _, forward, backward in self._operators.values())

    def operators(self) -> list[dict[str, Any]]:
        return self._most_expensive(self._operators)

    def sites(self) -> list[dict[str, Any]]:
        return self._most_expensive(self._sites)

    def _most_expensive(self, table: Mapping[tuple[str, ...], list[float]]) -> list[dict[str, Any]]:
        whole = self.total or 1.0
        largest = sorted(table.items(), key=lambda item: -(item[1][1] + item[1][2]))[:MOST_TIMES]
        return [
            {
                **dict(zip(("operator", "call_site"), key, strict=False)), "calls": int(calls),
                "forward_ms": round(forward, 4), "backward_ms": round(backward, 4),
                "share": round((forward + backward) / whole, 5),
            }
            for key, (calls, forward, backward) in largest
        ]  # fmt: skip


class StepTally:
    """What happened in each step: time, and verdicts that need attention."""

    def __init__(self) -> None:
        self._times: dict[int, dict[Any, float]] = {}
        self._events: dict[int, Counter[str]] = {}

    def add_time(self, row: Mapping[str, Any], milliseconds: float) -> None:
        """Add to the time of a rank in a step."""
        if isinstance(row.get("step"), int):
            ranks = self._times.setdefault(row["step"], {})
            key = (row.get("rank"), row.get("pid"))
            ranks[key] = ranks.get(key, 0.0) + milliseconds

    def add_event(self, row: Mapping[str, Any], verdict: str) -> None:
        """Count a verdict that needs attention."""
        step = row.get("step")
        if isinstance(step, int):
            kind = _EVENTS.get(verdict, "fail")
            self._events.setdefault(step, Counter())[kind] += 1

    def lines(self) -> list[dict[str, Any]]:
        """The steps in order; neighbours are put together where there are more than a screen shows."""
        steps = sorted(self._times.keys() | self._events.keys())
        width = -(-len(steps) // MOST_POINTS) or 1
        lines = []
        for start in range(0, len(steps), width):
            group = steps[start : start + width]
            # Ranks run side by side: the slowest says how long the step took.
            slowest = [max(self._times.get(step, {}).values(), default=0.0) for step in group]
            events = sum((self._events.get(step, Counter()) for step in group), Counter[str]())
            lines.append(
                {
                    "step": group[0], "last": group[-1], "ms": round(sum(slowest) / len(group), 4),
                    "fail": events["fail"], "nan": events["nan"], "lower_precision": events["lower_precision"],
                }
            )  # fmt: skip
        return lines


class MemoryTally:
    """Memory over time, by process."""

    KINDS = ("host_rss_bytes", "device_allocated_bytes", "device_reserved_bytes")

    def __init__(self) -> None:
        self._series: dict[tuple[Any, Any, str], list[tuple[float, float]]] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        time = finite(row.get("time_s"))
        for kind in self.KINDS:
            value = finite(row.get(kind))
            if time is not None and value is not None:
                key = (row.get("rank"), row.get("pid"), kind)
                self._series.setdefault(key, []).append((time, value))

    def lines(self) -> list[dict[str, Any]]:
        """A line per process and kind; of neighbours the highest stays, so that no peak is lost."""
        start = min((points[0][0] for points in self._series.values()), default=0.0)
        lines = []
        for (rank, pid, kind), points in self._series.items():
            points.sort()
            width = -(-len(points) // MOST_POINTS)
            kept = [
                max(points[start : start + width], key=lambda point: point[1])
                for start in range(0, len(points), width)
            ]
            if kind == "host_rss_bytes" or any(value for _, value in kept):
                lines.append(
                    {
                        "rank": rank, "pid": pid, "kind": kind,
                        "points": [[round(time - start, 3), int(value)] for time, value in kept],
                    }
                )  # fmt: skip
        return lines


class Captures:
    """Which folder holds the tensors of a call: from the capture's rows, and from what OpAutoCompare saved."""

    def __init__(self, run: Run) -> None:
        self._root = run.captures
        self._folders: dict[tuple[Any, Any, str], str | None] = {}
        self._saved: dict[str, dict[tuple[str, str], str]] = {}
        for row in map(with_whole_numbers, run.rows("capture")):
            key = (row.get("pid"), row.get("forward_id"), operator_of(row))
            folder = str(row.get("folder") or "")
            if self._folders.setdefault(key, folder) != folder:
                # Several calls of one operator inside one call: which of them a row is about is not known.
                self._folders[key] = None

    def path(self, row: Mapping[str, Any]) -> str:
        """The folder of a row's call, or nothing."""
        compared = str(row.get("folder_a" if row.get("side") == "A" else "folder_b") or "")
        if compared:  # a comparison of two runs names the captures itself
            return compared
        operator = operator_of(row)
        folder = (
            row.get("folder")
            or self._folders.get((row.get("pid"), row.get("forward_id"), operator))
            or self._saved_folder(row, operator)
        )
        return f"{self._root}/{folder}" if folder and self._root is not None else ""

    def _saved_folder(self, row: Mapping[str, Any], operator: str) -> str:
        """`<op>/<process>/autocompare/<id>/<time>/device` of a failing comparison, if it was among those saved."""
        if self._root is None or row.get("verdict") != "fail":
            return ""
        if operator not in self._saved:
            self._saved[operator] = _saved_calls(self._root, operator)
        return self._saved[operator].get((str(row.get("pid")), str(row.get("forward_id"))), "")


def _saved_calls(root: Path, operator: str) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    try:
        name = safe_name(operator)
        for process in sorted(os.listdir(root / name)):
            calls = root / name / process / "autocompare"
            for call in sorted(os.listdir(calls)) if calls.is_dir() else ():
                times = sorted(os.listdir(calls / call))
                if times:
                    folder = f"{name}/{process}/autocompare/{call}/{times[0]}/device"
                    # `rank0_host_123` or `123`: the process's number comes last.
                    found[(process.rpartition("_")[2], call)] = folder
    except OSError:  # nothing was saved of this operator, or it was removed since
        return found
    return found
