"""What logs come to, in a size that does not grow with their rows: summaries of parts add up to the summary of the whole.

`RunSummary.merge` is associative and commutative: counts and times are whole numbers, what is kept of the rows is the first of
them in a total order. So logs may be read in any order, in any number of processes, on any machine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Any

import msgspec

__all__ = [
    "LARGEST",
    "NO_RANK",
    "BestRows",
    "KeptRow",
    "LogLine",
    "MemorySeries",
    "OperatorStats",
    "RankStats",
    "RunSummary",
    "SiteTimes",
    "StepStats",
    "bucket_of",
    "middle_of",
]

# Sums stop here: files hold integers of 64 bits.
LARGEST = (1 << 62) - 1
# The rank of rows that name none.
NO_RANK = -1
# Rows that are kept of all ranks: the earliest of a tool, and of each operator and verdict the earliest and the worst.
MOST_FIRST = 20
MOST_EARLIEST = 8
MOST_WORST = 24
MOST_SERIES = 24
# A time is known to the 2^(1/8), about 9 %.
_BUCKETS_PER_OCTAVE = 8

When = tuple[bool, str, int, int, int, int, str]
"""Suspect or not, when its process started if it ran alone, step, position in its log, rank, pid, name of the log."""


def bucket_of(nanoseconds: int) -> int:
    """The number of the class of durations that one belongs to."""
    return int(math.log2(nanoseconds) * _BUCKETS_PER_OCTAVE) if nanoseconds > 0 else -1


def middle_of(histogram: dict[int, int]) -> float:
    """The median of durations counted by class, in nanoseconds."""
    half = sum(histogram.values()) / 2
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= half:
            return float(2 ** ((bucket + 0.5) / _BUCKETS_PER_OCTAVE)) if bucket >= 0 else 0.0
    return 0.0


def _plus(a: int, b: int) -> int:
    return min(a + b, LARGEST)


def _larger(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


def _smaller(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _count(into: dict[Any, int], more: dict[Any, int]) -> None:
    for key, number in more.items():
        into[key] = into.get(key, 0) + number


class OperatorStats(msgspec.Struct):
    """How often an operator was judged and how it came out; how often it made a NaN or Inf; how long it took."""

    compared: int = 0
    wrong: int = 0
    lower_precision: int = 0
    suspect: int = 0
    births: int = 0
    first_step: int | None = None  # where something was wrong
    error_over_bound: float | None = None
    max_abs_diff: float | None = None
    calls: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    durations: dict[int, int] = msgspec.field(default_factory=dict)

    def merge(self, other: OperatorStats) -> None:
        self.compared += other.compared
        self.wrong += other.wrong
        self.lower_precision += other.lower_precision
        self.suspect += other.suspect
        self.births += other.births
        self.first_step = _smaller(self.first_step, other.first_step)
        self.error_over_bound = _larger(self.error_over_bound, other.error_over_bound)
        self.max_abs_diff = _larger(self.max_abs_diff, other.max_abs_diff)
        self.calls += other.calls
        self.forward_ns = _plus(self.forward_ns, other.forward_ns)
        self.backward_ns = _plus(self.backward_ns, other.backward_ns)
        _count(self.durations, other.durations)


class RankStats(msgspec.Struct):
    """One rank: its operators, how far it came, the most memory it had."""

    operators: dict[str, OperatorStats] = msgspec.field(default_factory=dict)
    last_step: int | None = None
    peaks: dict[str, int] = msgspec.field(default_factory=dict)

    def merge(self, other: RankStats) -> None:
        for name, stats in other.operators.items():
            self.operators.setdefault(name, OperatorStats()).merge(stats)
        if other.last_step is not None:
            self.last_step = (
                other.last_step if self.last_step is None else max(self.last_step, other.last_step)
            )
        for kind, peak in other.peaks.items():
            self.peaks[kind] = max(peak, self.peaks.get(kind, 0))


class LogLine(msgspec.Struct, order=True, frozen=True):
    """What is said of one log."""

    tool: str
    rank: int
    started: str
    file: str
    host: str
    pid: int
    rows: int
    dropped: int  # bytes passed over
    damaged: int  # of these, before sound rows: not the torn tail of a killed process
    problem: str  # why nothing of it could be read
    world_size: int


class KeptRow(msgspec.Struct):
    """A row that is shown, with all its columns."""

    tool: str
    when: When
    score: float
    row: dict[str, Any]
    index: int = -1  # in the table, in the block of its tool

    @property
    def identity(self) -> tuple[str, int, int, str]:
        """The log it is of and its position there."""
        return self.tool, self.when[3], self.when[5], self.when[6]


class BestRows(msgspec.Struct):
    """Of the rows of one operator and verdict the earliest and the worst."""

    earliest: list[KeptRow] = msgspec.field(default_factory=list)
    worst: list[KeptRow] = msgspec.field(default_factory=list)

    def merge(self, other: BestRows, earliest: int = MOST_EARLIEST, worst: int = MOST_WORST) -> None:
        self.earliest = earliest_of([*self.earliest, *other.earliest], earliest)
        self.worst = worst_of([*self.worst, *other.worst], worst)


def earliest_of(rows: Iterable[KeptRow], most: int) -> list[KeptRow]:
    return heapq.nsmallest(most, rows, key=lambda kept: kept.when)


def worst_of(rows: Iterable[KeptRow], most: int) -> list[KeptRow]:
    return heapq.nsmallest(most, rows, key=lambda kept: (-kept.score, kept.when))


class StepStats(msgspec.Struct):
    """A step: how long its slowest rank took, how many values were compared, and verdicts that need attention."""

    nanoseconds: int = 0
    compared: int = 0
    events: dict[str, int] = msgspec.field(default_factory=dict)

    def merge(self, other: StepStats) -> None:
        self.nanoseconds = max(self.nanoseconds, other.nanoseconds)
        self.compared += other.compared
        _count(self.events, other.events)


class SiteTimes(msgspec.Struct):
    """The calls of one operator from one source line."""

    calls: int = 0
    forward_ns: int = 0
    backward_ns: int = 0

    def merge(self, other: SiteTimes) -> None:
        self.calls += other.calls
        self.forward_ns = _plus(self.forward_ns, other.forward_ns)
        self.backward_ns = _plus(self.backward_ns, other.backward_ns)


class MemorySeries(msgspec.Struct):
    """Memory of one kind and process over time."""

    rank: int
    pid: int
    kind: str
    points: list[tuple[float, int]]

    @property
    def order(self) -> tuple[int, int, int, str]:
        return -max(value for _, value in self.points), self.rank, self.pid, self.kind


class RunSummary(msgspec.Struct):
    """Of some logs of a run. Those of one process belong into one summary, which its first maker sees to."""

    logs: list[LogLine] = msgspec.field(default_factory=list)
    verdicts: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    ranks: dict[int, RankStats] = msgspec.field(default_factory=dict)
    sites: dict[str, dict[str, SiteTimes]] = msgspec.field(default_factory=dict)
    steps: dict[int, StepStats] = msgspec.field(default_factory=dict)
    memory: list[MemorySeries] = msgspec.field(default_factory=list)
    memory_start: float | None = None
    first: dict[str, list[KeptRow]] = msgspec.field(default_factory=dict)
    best: dict[str, BestRows] = msgspec.field(default_factory=dict)
    torch: list[str] = msgspec.field(default_factory=list)
    devices: list[str] = msgspec.field(default_factory=list)
    settings: dict[str, tuple[int, str, dict[str, Any]]] = msgspec.field(default_factory=dict)
    """By tool those of the lowest rank, with the rank and the log that says so."""

    def merge(self, other: RunSummary) -> None:
        """Add what another summary says; it may not be used afterwards."""
        self.logs = sorted([*self.logs, *other.logs])
        for tool, verdicts in other.verdicts.items():
            _count(self.verdicts.setdefault(tool, {}), verdicts)
        for rank, stats in other.ranks.items():
            self.ranks.setdefault(rank, RankStats()).merge(stats)
        for name, sites in other.sites.items():
            mine = self.sites.setdefault(name, {})
            for site, times in sites.items():
                mine.setdefault(site, SiteTimes()).merge(times)
        for step, one in other.steps.items():
            self.steps.setdefault(step, StepStats()).merge(one)
        self.memory = heapq.nsmallest(MOST_SERIES, [*self.memory, *other.memory], key=lambda one: one.order)
        if other.memory_start is not None:
            start = other.memory_start
            self.memory_start = start if self.memory_start is None else min(start, self.memory_start)
        for tool, rows in other.first.items():
            self.first[tool] = earliest_of([*self.first.get(tool, []), *rows], MOST_FIRST)
        for key, best in other.best.items():
            self.best.setdefault(key, BestRows()).merge(best)
        self.torch = sorted({*self.torch, *other.torch})
        self.devices = sorted({*self.devices, *other.devices})
        for tool, found in other.settings.items():
            self.settings[tool] = min(found, self.settings.get(tool, found), key=lambda one: one[:2])

    def operators(self) -> dict[str, OperatorStats]:
        """The operators over all ranks."""
        found: dict[str, OperatorStats] = {}
        for rank in self.ranks.values():
            for name, stats in rank.operators.items():
                found.setdefault(name, OperatorStats()).merge(stats)
        return found
