"""Where the time of a piece of work went, operator by operator, and how the device ran each of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

# The order and the words in which the ways of running an operator are shown.
WAYS = {"diopi": "DIOPI", "alias": "alias", "copy": "copy"}
TOP = 12


def base_name(operator: str) -> str:
    """`aten::add.Tensor` and `add.Tensor` -> `aten::add`, which is how the profiler names them."""
    name = operator.partition(".")[0]
    return name if "::" in name else f"aten::{name}"


def ways_by_operator(counts: dict[str, dict[str, int]]) -> dict[str, Counter[str]]:
    """Add up the overloads of each operator."""
    ways: dict[str, Counter[str]] = defaultdict(Counter)
    for operator, calls in counts.items():
        ways[base_name(operator)].update({way: n for way, n in calls.items() if n})
    return ways


def describe(ways: Counter[str] | None) -> str:
    """`DIOPI`, or `DIOPI 75 %, alias 25 %` where an operator was run in several ways."""
    if not ways:
        return ""
    total = sum(ways.values())
    names = [(WAYS.get(way, way), ways[way]) for way in (*WAYS, *sorted(set(ways) - set(WAYS))) if ways[way]]
    if len(names) == 1:
        return names[0][0]
    return ", ".join(f"{name} {100 * calls / total:.0f} %" for name, calls in names)


def operator_table(work: Callable[[], None], device: torch.device, module: Any, steps: int) -> Table:
    """Profile `work` and tabulate the operators with the largest own time.

    On a CUDA card the kernels run elsewhere, so their own device time counts; everywhere else an operator's
    work happens inside the call and the host's time is the truth.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    counted = hasattr(module, "op_counts")
    if counted:
        module.reset_op_counts()
    with profile(activities=activities) as profiler:
        work()
    ways = ways_by_operator(module.op_counts()) if counted else {}

    own_time = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    events = sorted(profiler.key_averages(), key=lambda event: getattr(event, own_time), reverse=True)
    total = sum(getattr(event, own_time) for event in events) or 1.0
    table = Table(title=f"Where the time went ({steps} further steps on {device}, profiled)", expand=True)
    table.add_column("operator", no_wrap=True, overflow="ellipsis", ratio=1)
    for heading in ("calls per step", "ms per step", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    if counted:
        table.add_column("run by", no_wrap=True)

    def add(name: str, calls: float, microseconds: float, how: str) -> None:
        share = f"{100 * microseconds / total:.1f} %"
        cells = [name, f"{calls / steps:,.0f}", f"{microseconds / 1000 / steps:.2f}", share]
        table.add_row(*cells, *([how] if counted else []))

    for event in events[:TOP]:
        add(event.key, event.count, getattr(event, own_time), describe(ways.get(event.key)))
    rest = events[TOP:]
    if rest:
        time_of_rest = sum(getattr(event, own_time) for event in rest)
        add(f"{len(rest)} others", sum(event.count for event in rest), time_of_rest, "")
    if ways:
        every: Counter[str] = sum(ways.values(), Counter())
        calls = sum(every.values())
        table.caption = f"{calls / steps:,.0f} operator calls per step: {describe(every)}"
    return table
