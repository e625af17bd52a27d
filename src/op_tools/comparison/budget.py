"""What looking at calls may cost: so much of the program's time, and a moment more where nothing was looked at for a while."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

__all__ = ["Budget", "Look"]

# Seconds that may be spent at once: on the first steps, and on shapes that are new.
_AT_ONCE = 0.5
_LONGEST_REFRESH = 1_000_000
# A signature that costs as much more than others as the square of this comes round so much less often.
_MOST_ROUNDS = 1000.0
# Of what is averaged, the newest counts as much.
_NEWEST = 0.05
_STEPS = 20
# Seeing calls go by may take this part of the budget: the observer rests for some steps, and not for longer than this, nor for
# so much of a round that signatures are missed.
_FOR_SEEING = 0.3
_LONGEST_REST, _RESTS_IN_A_ROUND = 16, 6


class Budget:
    """Opens and closes a sampler, so that what is spent stays a share of the time that passes.

    Between that, it sets how often a signature comes round: as often as the budget allows for all of them. Those that cost more
    than others come round less often, by the square root of what they cost: that gives all the least time to wait.
    """

    def __init__(self, percent: float, refresh: int, sampler: Any) -> None:
        """`percent` 0: there is no limit."""
        self._share = percent / 100
        self._refresh = refresh
        self._sampler = sampler
        self._lock = threading.Lock()
        self._began = time.perf_counter()
        self.spent = 0.0
        self._per_look = 0.0
        self._per_step = 0.0
        self._at = (sampler.step, self._began)
        self._off: float | None = None  # since when the tool is switched off
        self._seeing = 0.0  # what seeing the calls of a step takes
        self._rest = 0  # steps

    def switched(self, on: bool) -> None:
        """Time in which the tool is off is no time of the program's that it may spend."""
        with self._lock:
            if not on:
                self._off = time.perf_counter()
            elif self._off is not None:
                passed, self._off = time.perf_counter() - self._off, None
                self._began += passed
                self._at = (self._at[0], self._at[1] + passed)
                if self._sampler.closed_until:
                    self._sampler.closed_until += int(passed * 1e9)

    def rest_after(self, seeing: float) -> int:
        """The steps for which no calls are to be seen, after one in which that took so many seconds.

        Seeing calls may take a part of the budget; and while the budget is spent nothing would be looked at.
        """
        if self._rest > 0:
            self._rest -= 1
            return self._rest
        if seeing > 0:
            self._seeing = seeing if not self._seeing else self._seeing + (seeing - self._seeing) / 4
        if self._share <= 0 or self._per_step <= 0:
            return 0
        steps = self._seeing / (_FOR_SEEING * self._share * self._per_step) - 1
        overdrawn = (self._sampler.closed_until - time.monotonic_ns()) * 1e-9 / self._per_step
        steps = min(max(steps, overdrawn), _LONGEST_REST, self._refresh / _RESTS_IN_A_ROUND)
        # Not always as many: what comes in every third step would never be seen, or always.
        usual = math.ceil(steps)
        self._rest = 0 if usual <= 0 else max(1, usual // 2 + self._sampler.step * 40503 // 256 % (usual + 1))
        return self._rest

    @property
    def step_seconds(self) -> float:
        """What a step of the program takes."""
        return self._per_step

    @property
    def part(self) -> float:
        """The part of the time since the start that was spent."""
        return self.spent / max(self._now() - self._began, 1e-9)

    def _now(self) -> float:
        return time.perf_counter() if self._off is None else self._off

    def spend(self, seconds: float) -> None:
        """Note what was spent, now or before long; less than nothing is given back."""
        with self._lock:
            self.spent += seconds
            if self._share <= 0:
                return
            share = self._share * 1e-9  # of a nanosecond
            earliest = time.monotonic_ns() - _AT_ONCE / share
            until = max(self._sampler.closed_until, earliest) + seconds / share
            self._sampler.closed_until = max(1, int(until))

    @property
    def usual(self) -> float:
        """Seconds that a look costs."""
        return self._per_look

    def looked(self, signature: int, seconds: float) -> None:
        """What one look has cost in all."""
        with self._lock:
            if not self._per_look:
                self._per_look = seconds
            self._per_look += _NEWEST * (seconds - self._per_look)
            usual = self._per_look
        if self._share <= 0:
            return
        ratio = seconds / usual if usual > 0 else 1.0
        self._sampler.set_rounds(signature, min(_MOST_ROUNDS, ratio**0.5) if ratio > 2 else 1.0)
        self.adjust()

    def adjust(self) -> None:
        """Set how often signatures come round."""
        with self._lock:
            step, now = self._sampler.step, self._now()
            steps, seconds = step - self._at[0], now - self._at[1]
            if self._share <= 0 or steps < _STEPS:
                return
            self._at = (step, now)
            each = seconds / steps
            self._per_step = each if not self._per_step else (self._per_step + each) / 2
            # Seeing calls has the first part.
            allowed = self._share * self._per_step - min(
                self._seeing, _FOR_SEEING * self._share * self._per_step
            )
            wanted = self._sampler.taken_in_a_round * self._per_look / allowed
        self._sampler.refresh = max(self._refresh, min(_LONGEST_REFRESH, round(wanted)))


class Look:
    """What one look costs. As much as is usual is spent when it begins, or many would begin before the first is paid for."""

    def __init__(self, budget: Budget, signature: int) -> None:
        self._budget, self._signature = budget, signature
        self._cost = self._host = 0.0
        self._spent = budget.usual
        budget.spend(self._spent)

    def took(self, seconds: float) -> None:
        """Time of the program's own threads."""
        self._host += seconds
        self._add(seconds)

    def copied(self, seconds: float) -> None:
        """Time of the devices. They work while the host does: what takes longer is what the program notices."""
        self._add(max(0.0, seconds - self._host))

    def judged(self, seconds: float) -> None:
        """Time of the thread that judges; the look is over."""
        self._add(seconds)
        self._budget.spend(self._cost - self._spent)
        self._spent = self._cost
        self._budget.looked(self._signature, self._cost)

    def ended(self) -> None:
        """Nothing came of it."""
        self._budget.spend(self._cost - self._spent)

    def _add(self, seconds: float) -> None:
        self._cost += seconds
        if self._cost > self._spent:
            self._budget.spend(self._cost - self._spent)
            self._spent = self._cost
