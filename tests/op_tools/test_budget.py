"""What a tool with a budget may spend: not the time in which it is off, and seeing calls go by counts too."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

import pytest

from op_tools.comparison import budget as module
from op_tools.comparison.budget import Budget


@dataclass
class Steps:
    """What a budget asks of a sampler, and sets."""

    step: int = 0
    closed_until: int = 0
    refresh: int = 50
    taken_in_a_round: float = 100.0

    def set_rounds(self, signature: int, rounds: float) -> None:
        """Nothing depends on it here."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass only when a test says so."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: int(now[0] * 1e9))
    return now


def after_steps(
    clock: list[float], percent: float, seeing: float, steps: int = 600
) -> tuple[Budget, list[int]]:
    """A program with steps of 10 ms, in which seeing the calls of a step costs so much; which steps were seen."""
    sampler = Steps()
    budget: Any = Budget(percent, 50, sampler)
    resting, seen = 0, []
    for step in range(steps):
        sampler.step = step
        clock[0] += 0.01
        spent = 0.0 if resting else seeing
        seen += [] if resting else [step]
        budget.adjust()
        budget.spend(spent)
        resting = budget.rest_after(spent)
    return budget, seen


def test_seeing_calls_takes_its_part_of_the_budget_and_no_more(clock: list[float]) -> None:
    budget, seen = after_steps(clock, 2.0, seeing=0.00025)  # of 10 ms: 2.5 % if all steps were seen
    assert 0.002 < budget.part < 0.009
    gaps = {after - before for before, after in itertools.pairwise(seen[10:])}
    assert (
        len(gaps) > 2 and max(gaps) <= 50 / 6 + 2
    )  # not in step with the program, and often in a round of 50 steps


def test_a_budget_without_a_limit_and_calls_that_cost_nothing_need_no_rest(clock: list[float]) -> None:
    assert len(after_steps(clock, 0.0, seeing=0.001)[1]) == 600
    assert len(after_steps(clock, 2.0, seeing=0.00001)[1]) == 600


def test_time_in_which_the_tool_is_off_may_not_be_spent(clock: list[float]) -> None:
    sampler = Steps()
    budget = Budget(2.0, 50, sampler)
    budget.spend(1.0)
    closed_for = sampler.closed_until - time.monotonic_ns()
    assert closed_for == pytest.approx(25e9)  # half a second is free, the rest takes fifty times as long
    clock[0] += 5
    budget.switched(False)
    clock[0] += 1000
    budget.switched(True)
    assert sampler.closed_until - time.monotonic_ns() == pytest.approx(20e9)
    clock[0] += 5
    assert budget.part == pytest.approx(0.1)
