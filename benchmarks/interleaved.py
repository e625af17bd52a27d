"""Compare two pieces of work by running them in turn, in many short rounds.

A machine's speed drifts (frequency, neighbours, caches). Measuring A for a minute and then B for a minute
puts that drift into the ratio; A B B A A B ... in slices of milliseconds gives both sides the same share.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
Work = Callable[[], object]


def nothing() -> None:
    """The wait of a side that needs none."""


@dataclass(frozen=True)
class Side:
    """One piece of work; `wait` returns once everything that `work` started has finished."""

    work: Work
    wait: Callable[[], None] = nothing

    def seconds(self, calls: int, clock: Clock) -> float:
        """Time of one call, averaged over `calls` of them."""
        work = self.work
        self.wait()
        started = clock()
        for _ in range(calls):
            work()
        self.wait()
        return (clock() - started) / calls


@dataclass(frozen=True)
class Comparison:
    """Seconds per call of both sides, round by round."""

    calls: int
    baseline: list[float]
    candidate: list[float]

    @property
    def baseline_median(self) -> float:
        return statistics.median(self.baseline)

    @property
    def candidate_median(self) -> float:
        return statistics.median(self.candidate)

    @property
    def ratio_of_medians(self) -> float:
        return self.candidate_median / self.baseline_median

    @property
    def round_ratios(self) -> list[float]:
        return [c / b for b, c in zip(self.baseline, self.candidate, strict=True)]

    @property
    def median_of_ratios(self) -> float:
        """What a target is held against: each round's drift has cancelled before the median is taken."""
        return statistics.median(self.round_ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The middle half of the round ratios: how far the figure can be trusted."""
        if len(self.baseline) < 2:
            return self.median_of_ratios, self.median_of_ratios
        low, _, high = statistics.quantiles(self.round_ratios, n=4, method="inclusive")
        return low, high


def calls_per_slice(side: Side, slice_seconds: float, clock: Clock) -> int:
    """The number of calls that fills a slice: short enough to alternate often, long enough for the clock."""
    calls = 1
    while True:
        spent = side.seconds(calls, clock) * calls
        if spent >= slice_seconds / 2:
            return max(1, round(calls * slice_seconds / spent))
        calls *= 2


def compare(
    baseline: Side,
    candidate: Side,
    rounds: int,
    slice_seconds: float = 0.01,
    clock: Clock = time.perf_counter,
) -> Comparison:
    """Run both sides in turn for `rounds` rounds; who goes first alternates, so that it is no advantage."""
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    candidate.seconds(1, clock)
    calls = calls_per_slice(baseline, slice_seconds, clock)
    seconds: dict[str, list[float]] = {"baseline": [], "candidate": []}
    order = [("baseline", baseline), ("candidate", candidate)]
    for index in range(rounds):
        for name, side in order if index % 2 == 0 else reversed(order):
            seconds[name].append(side.seconds(calls, clock))
    return Comparison(calls, seconds["baseline"], seconds["candidate"])
