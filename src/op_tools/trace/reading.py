"""The measured calls of a run, as slices of time by process. Texts that repeat are kept once: a run may have a million rows."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from op_tools.runs import BadInput, Run
from op_tools.storage.errors import CaptureError
from op_tools.storage.log_reader import LogReader

FORWARD, BACKWARD = "forward", "backward"
# Starts are eighths of a microsecond: exact in binary, so no reader that counts nanoseconds rounds them apart.
TICK_NS = 125

_DEVICE = re.compile(r"@(\w+(?::\d+)?)")


class Facts(NamedTuple):
    """What a slice says of its call."""

    name: str
    forward_id: int
    call_site: str
    step: int
    module: str
    path: tuple[str, ...]  # the step, then the parts of the module's path
    device: str  # whose clock measured it; empty for the host's
    inputs: str
    outputs: str
    grad_inputs: str
    grad_outputs: str


@dataclass(slots=True, eq=False)
class Slice:
    """One stretch of time in nanoseconds: a call, or the backward of one."""

    start: int
    length: int
    kind: str
    thread: int
    facts: Facts
    flow: int = 0  # of the arrow that leaves or reaches it

    @property
    def end(self) -> int:
        return self.start + self.length


class Counter(NamedTuple):
    """The value of a quantity at a time."""

    time: int
    name: str
    value: float


@dataclass
class Process:
    """What the logs tell of one process of the run."""

    rank: int
    world_size: int
    pid: int
    host: str
    slices: list[Slice] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)


@dataclass
class Timed:
    """All processes of a run, by rank, and what of its logs has no time."""

    processes: list[Process]
    rows: int = 0
    without_start: int = 0
    without_time: int = 0

    def origin(self) -> int:
        """The earliest time of all, in nanoseconds since 1970."""
        slices = (piece.start for process in self.processes for piece in process.slices)
        counters = (counter.time for process in self.processes for counter in process.counters)
        return min(min(slices, default=math.inf), min(counters, default=math.inf))  # type: ignore[return-value]


def read_run(run: Run, steps: Container[int] | None = None) -> Timed:
    """The calls that OpTimeMeasure wrote, and the memory over time where it was watched. Raises BadInput."""
    processes: dict[tuple[Any, ...], Process] = {}
    timed = Timed([])
    texts = _Texts()
    for tool in ("time_measure", "memory"):
        for path in run.logs.get(tool, ()):
            records = _records(path)
            header = next(records, {})
            process = _process(header, processes) if header else None
            for row in records:
                if process is None or (steps is not None and not _is_of(row.get("step"), steps)):
                    continue
                if tool == "memory":
                    _add_memory(process, row, str(header.get("started", "")))
                else:
                    timed.rows += 1
                    _add_calls(process, row, texts, timed)
    timed.processes = sorted(processes.values(), key=lambda process: (process.rank, process.pid))
    return timed


def _process(header: dict[str, Any], processes: dict[tuple[Any, ...], Process]) -> Process:
    """The process a log is of; a tool that was started twice has two logs."""
    process = Process(
        _number(header.get("rank")), _number(header.get("world_size"), 1), _number(header.get("pid")),
        str(header.get("host", "")),
    )  # fmt: skip
    return processes.setdefault((process.host, process.pid, process.rank), process)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The header, which may be empty, and the rows."""
    try:
        with LogReader(path) as reader:
            yield reader.header
            yield from reader.rows()
    except (CaptureError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error


class _Texts:
    """Texts, paths and devices that were seen before."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._paths: dict[tuple[int, str], tuple[str, ...]] = {}
        self._devices: dict[str, str] = {}

    def once(self, value: Any) -> str:
        text = value if isinstance(value, str) else ""
        return self._texts.setdefault(text, text)

    def path(self, step: int, module: str) -> tuple[str, ...]:
        path = self._paths.get((step, module))
        if path is None:
            parts = map(self.once, module.split(".")) if module else ()
            path = self._paths[step, module] = (self.once(f"step {step}"), *parts)
        return path

    def device(self, inputs: str, outputs: str) -> str:
        """The device the texts of a call speak of first, the CPU aside."""
        for text in (inputs, outputs):
            device = self._devices.get(text)
            if device is None:
                found = (name for name in _DEVICE.findall(text) if not name.startswith(("cpu", "meta")))
                device = self._devices[text] = next(found, "")
            if device:
                return device
        return "device"


def _add_calls(process: Process, row: dict[str, Any], texts: _Texts, timed: Timed) -> None:
    start = row.get("start_us")
    if not _is_time(start):
        timed.without_start += 1
        return
    step, module = _number(row.get("step")), texts.once(row.get("module"))
    inputs, outputs = texts.once(row.get("input")), texts.once(row.get("output"))
    facts = Facts(
        texts.once(row.get("name")), _number(row.get("forward_id")), texts.once(row.get("call_site")), step, module,
        texts.path(step, module), texts.device(inputs, outputs) if row.get("clock") == "device" else "",
        inputs, outputs, texts.once(row.get("grad_inputs")), texts.once(row.get("grad_outputs")),
    )  # fmt: skip
    thread = _number(row.get("thread"))
    forward, back, begun = (
        row.get(key) for key in ("forward_elasped", "backward_elasped", "backward_start_us")
    )
    kind = BACKWARD if row.get("phase") == "backward" else FORWARD
    if _is_length(forward):
        process.slices.append(Slice(_tick(start), _nanoseconds(forward), kind, thread, facts))
    else:
        timed.without_time += 1
    if _is_length(back) and _is_time(begun):
        process.slices.append(Slice(_tick(begun), _nanoseconds(back), BACKWARD, thread, facts))


_MEMORY = (("host_rss_bytes", "host memory (bytes)"), ("device_allocated_bytes", "device memory (bytes)"))
_SURELY_SINCE_1970 = 1e9


def _add_memory(process: Process, row: dict[str, Any], started: str) -> None:
    when = _time_of_sample(row, started)
    if when is not None:
        tick = _tick(when)
        process.counters += [
            Counter(tick, name, row[key]) for key, name in _MEMORY if _is_finite(row.get(key))
        ]


def _time_of_sample(row: dict[str, Any], started: str) -> float | None:
    """In microseconds since 1970; where a sample only says the seconds since the first one, from when the log began."""
    exact, seconds = row.get("start_us"), row.get("time_s")
    if _is_time(exact):
        return exact
    if not _is_finite(seconds):
        return None
    when = (seconds if seconds > _SURELY_SINCE_1970 else seconds + _seconds_of(started)) * 1e6
    return when if _is_time(when) else None


@functools.lru_cache(maxsize=64)
def _seconds_of(started: str) -> float:
    try:
        return time.mktime(time.strptime(started, "%Y-%m-%d-%H-%M-%S"))
    except (ValueError, OverflowError):
        return 0.0


def _is_finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_time(value: Any) -> TypeGuard[float]:
    """Whether this can be microseconds since 1970; what lies beyond the year 3000 is damage."""
    return isinstance(value, int | float) and 0 <= value < 4e16


def _is_length(value: Any) -> TypeGuard[float]:
    """Whether this can be the milliseconds of a call: less than 30 years."""
    return isinstance(value, int | float) and abs(value) < 1e12


def _is_of(step: Any, steps: Container[int]) -> bool:
    return isinstance(step, int) and step in steps


def _number(value: Any, otherwise: int = 0) -> int:
    return value if isinstance(value, int) else otherwise


def _tick(microseconds: float) -> int:
    return round(microseconds * 8) * TICK_NS


def _nanoseconds(milliseconds: float) -> int:
    return max(0, round(milliseconds * 1e6))
