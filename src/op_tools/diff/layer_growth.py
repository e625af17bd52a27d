"""Where the difference between two runs is born, from how far apart the values of each module are.

The values that go into a module differ a little already, by rounding. What comes out may differ as much, times a
small factor. A module is suspect where the difference grows far more than elsewhere. A module with others inside is
asked only about what it does itself: from what comes in, or out of one inner module, to what goes into the next.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from op_tools.diff.layer_values import Difference, LayerCall

__all__ = ["Growth", "Measured", "grown", "measured_growth"]

# How many times more than in most modules a difference must grow to be suspect. Other orders of summation stay below 6.
FAR_ABOVE = 32.0


@dataclass
class Measured:
    """One module call in both runs: the differences of its parts by name, and the calls inside it."""

    call: LayerCall
    parts: Mapping[str, Difference]
    is_judged: bool = False  # computed again from its own inputs: nothing has to be guessed
    is_random: bool = False
    epsilon: float = 0.0  # of the dtype that autocast computes in, whatever the values are kept in
    inside: list[Measured] = field(default_factory=list)

    def worst(self, *kinds: str) -> float:
        """The largest difference among parts of these kinds, such as `input` or `grad_weight`."""
        return max((d.rel_rms for d in self.of(*kinds)), default=0.0)

    def of(self, *kinds: str) -> list[Difference]:
        """The differences of the parts of these kinds; what is there on one side only does not count."""
        return [d for name, d in self.parts.items() if _kind(name) in kinds and not math.isnan(d.rel_rms)]

    @property
    def is_drawn(self) -> bool:
        """Whether the two runs drew other random numbers here."""
        ends = self.of("input", "output")
        least = max((self.worst("input"), *(d.epsilon for d in ends)))
        return self.is_random and self.worst("output") > FAR_ABOVE * least


@dataclass(frozen=True)
class Growth:
    """A difference, what explains it at most, and the module between the two."""

    owner: Measured | None  # None: what stands outside of all modules
    at: Measured  # the call whose part it is: the owner, or one inside it
    part: str
    difference: float
    explained: float
    factor: float
    backward: bool


def _kind(part: str) -> str:
    return part.partition("[")[0].partition(":")[0]


def grown(growths: list[Growth]) -> list[Growth]:
    """Those that grow far more than is typical of these two runs."""
    factors = [growth.factor for growth in growths if 0 < growth.factor < math.inf]
    typical = max(1.0, statistics.median(factors) if factors else 1.0)
    return [growth for growth in growths if growth.factor > FAR_ABOVE * typical]


def measured_growth(roots: list[Measured], floor: float = 0.0) -> list[Growth]:
    """All growths in the order of the forward pass, then of the backward pass. `floor`: arithmetic known to be coarser."""
    outside = Measured(_OUTSIDE, {}, inside=roots)
    forward = list(_forward(outside, floor))
    return forward + list(_backward(outside, floor))


_OUTSIDE = LayerCall((0, 0, "", "", 0), 0, 0, "", "", None, "")  # type: ignore[arg-type]


def _growth(
    owner: Measured, at: Measured, kind: str, explained: float, floor: float, backward: bool = False
) -> Iterator[Growth]:
    for name, found in at.parts.items():
        if _kind(name) != kind or math.isnan(found.rel_rms) or not found.epsilon:
            continue
        least = max(explained, found.epsilon, owner.epsilon, at.epsilon, floor)
        factor = found.rel_rms / least
        who = None if owner.call is _OUTSIDE else owner
        yield Growth(who, at, name, found.rel_rms, least, factor, backward)


def _forward(owner: Measured, floor: float) -> Iterator[Growth]:
    explained = owner.worst("input", "weight", "buffer")
    for child in owner.inside:
        if owner.call is not _OUTSIDE or explained:
            yield from _growth(owner, child, "input", explained, floor)
        yield from _forward(child, floor)
        explained = max(explained, child.worst("input", "output"))
    if not owner.is_judged and not owner.is_drawn:
        yield from _growth(owner, owner, "output", explained, floor)


def _backward(owner: Measured, floor: float) -> Iterator[Growth]:
    # What backward computes depends on the values of forward too.
    values = ("input", "weight", "buffer", "output")
    explained = max(owner.worst(*values), *(child.worst("input", "output") for child in owner.inside), 0.0)
    explained = max(explained, owner.worst("grad_output"))
    for child in reversed(owner.inside):
        yield from _growth(owner, child, "grad_output", explained, floor, backward=True)
        yield from _backward(child, floor)
        explained = max(explained, child.worst("grad_output", "grad_input"))
    if not owner.is_judged and not owner.is_drawn:
        yield from _growth(owner, owner, "grad_input", explained, floor, backward=True)
        yield from _growth(owner, owner, "grad_weight", explained, floor, backward=True)
