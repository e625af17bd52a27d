"""The tables and charts of the first screen, from a summary: worst operators, steps, times, memory, logs."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from op_tools.report.ranks import ranges
from op_tools.report.rows import section_of
from op_tools.report.summary import LogLine, MemorySeries, OperatorStats, RunSummary, StepStats
from op_tools.runs import DERIVED_LOGS

__all__ = ["environment_of", "memory_lines", "operator_lines", "step_lines", "time_lines"]

MOST_LINES = 20
MOST_TIMES = 12
MOST_STEPS = 400
# With more logs than this only those are listed that are not whole.
MOST_LOGS = 100
_NANOSECONDS = 1e6  # in a millisecond


def operator_lines(
    summary: RunSummary, operators: Mapping[str, OperatorStats], most: int = MOST_LINES
) -> list[dict[str, Any]]:
    """The worst operators: by failures, then by error over bound; on which ranks they fail."""
    worth = [
        (name, one)
        for name, one in operators.items()
        if one.wrong or one.lower_precision or one.error_over_bound is not None
    ]
    worth.sort(
        key=lambda item: (
            -item[1].wrong,
            -item[1].lower_precision,
            -(item[1].error_over_bound or 0.0),
            item[0],
        )
    )
    return [_operator_line(name, one, summary) for name, one in worth[:most]]


def _operator_line(name: str, one: OperatorStats, summary: RunSummary) -> dict[str, Any]:
    cells = {rank: stats.operators[name] for rank, stats in summary.ranks.items() if name in stats.operators}
    failed = {rank: cell.wrong for rank, cell in cells.items() if cell.wrong}
    return {
        "operator": name, "compared": one.compared, "fail": one.wrong, "lower_precision": one.lower_precision,
        "first_step": one.first_step if one.wrong else None, "error_over_bound": one.error_over_bound,
        "max_abs_diff": one.max_abs_diff, "ranks": sum(cell.compared > 0 for cell in cells.values()),
        "failed_ranks": len(failed), "failed_on": ranges(failed), "failures": sorted(failed.items()),
    }  # fmt: skip


def step_lines(steps: Mapping[int, StepStats]) -> list[dict[str, Any]]:
    """The steps in order; neighbours are put together where there are more than a screen shows."""
    numbers = sorted(steps)
    width = -(-len(numbers) // MOST_STEPS) or 1
    lines = []
    for start in range(0, len(numbers), width):
        group = numbers[start : start + width]
        # Ranks run side by side: the slowest says how long the step took.
        slowest = sum(steps[step].nanoseconds for step in group) / len(group)
        line = {"step": group[0], "last": group[-1], "ms": round(slowest / _NANOSECONDS, 4)}
        line["compared"] = sum(steps[step].compared for step in group)
        for event in ("fail", "nan", "lower_precision"):
            line[event] = sum(steps[step].events.get(event, 0) for step in group)
        lines.append(line)
    return lines


def memory_lines(series: Sequence[MemorySeries], start: float | None) -> list[dict[str, Any]]:
    """A line per process and kind, in seconds since the first of them."""
    return [
        {
            "rank": one.rank, "pid": one.pid, "kind": one.kind,
            "points": [[round(moment - (start or 0.0), 3), value] for moment, value in one.points],
        }
        for one in sorted(series, key=lambda one: (one.rank, one.pid, one.kind))
    ]  # fmt: skip


def time_lines(summary: RunSummary, operators: Mapping[str, OperatorStats]) -> dict[str, Any]:
    """Time by operator and by call site, forward and backward, the most expensive first."""
    sites = [
        ((name, site), times.calls, times.forward_ns, times.backward_ns)
        for name, found in summary.sites.items()
        for site, times in found.items()
    ]
    timed = [
        ((name,), one.calls, one.forward_ns, one.backward_ns) for name, one in operators.items() if one.calls
    ]
    whole = sum(forward + backward for _, _, forward, backward in timed)
    return {
        "total_ms": round(whole / _NANOSECONDS, 4),
        "time_operators": _most_expensive(timed, whole),
        "time_sites": _most_expensive(sites, whole),
    }


def _most_expensive(
    entries: Iterable[tuple[tuple[str, ...], int, int, int]], whole: int
) -> list[dict[str, Any]]:
    largest = sorted(entries, key=lambda entry: (-(entry[2] + entry[3]), entry[0]))[:MOST_TIMES]
    return [
        {
            **dict(zip(("operator", "call_site"), key, strict=False)), "calls": calls,
            "forward_ms": round(forward / _NANOSECONDS, 4), "backward_ms": round(backward / _NANOSECONDS, 4),
            "share": round((forward + backward) / (whole or 1), 5),
        }
        for key, calls, forward, backward in largest
    ]  # fmt: skip


# -- where it was made ----------------------------------------------------------------------------------------------


def environment_of(summary: RunSummary, captures: Sequence[Path]) -> dict[str, Any]:
    """What logs and captures say about where they were made."""
    logs = summary.logs
    torch, devices = set(summary.torch), set(summary.devices)
    for header in _headers(captures):
        torch |= {str(header["torch"])} if header.get("torch") else set()
        devices |= {str(header["device"])} if header.get("device") else set()
    # What compares or replays captures afterwards is not the program.
    program = [log for log in logs if log.tool not in DERIVED_LOGS]
    listed = (
        logs if len(logs) <= MOST_LOGS else [log for log in logs if log.dropped or log.problem][:MOST_LOGS]
    )
    return {
        "torch": sorted(torch), "devices": sorted(devices), "hosts": sorted({log.host for log in logs if log.host}),
        "ranks": len({log.rank for log in logs if log.rank >= 0}) or 1,
        "world_size": max((log.world_size for log in logs), default=1),
        "processes": len({_process(log) for log in program}),
        "settings": {tool: settings for tool, (_, _, settings) in sorted(summary.settings.items())},
        "logs": [_log_line(log) for log in listed], "log_count": len(logs), "timed_with": _timed_with(program),
        "dropped": sum(log.dropped for log in logs), "damaged": sum(log.damaged for log in logs),
        "unreadable": sum(bool(log.problem) for log in logs), "captures": bool(captures),
        "python": platform.python_version(),
    }  # fmt: skip


def _process(log: LogLine) -> tuple[int, str, int]:
    return log.rank, log.host, log.pid


def _log_line(log: LogLine) -> dict[str, Any]:
    return {
        "tool": log.tool, "file": log.file, "rows": log.rows, "dropped": log.dropped, "damaged": log.damaged,
        "problem": log.problem, "rank": log.rank if log.rank >= 0 else None, "pid": log.pid or None, "host": log.host,
        "started": log.started,
    }  # fmt: skip


def _timed_with(logs: Sequence[LogLine]) -> list[str]:
    """Tools that were on in the processes whose times were measured: they slow operators down."""
    timed = {_process(log) for log in logs if section_of(log.tool) == "time"}
    others = {log.tool for log in logs if _process(log) in timed}
    return sorted(tool for tool in others if section_of(tool) not in ("time", "memory"))


def _headers(captures: Sequence[Path]) -> Iterable[Mapping[str, Any]]:
    """Captures say which torch and device made them."""
    for root in captures:
        for path in islice(root.rglob("input.pth.json"), 3):
            try:
                header = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue
            if isinstance(header, dict):
                yield header
