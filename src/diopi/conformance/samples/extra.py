"""Samples for mistakes that those of the families show too seldom."""

from __future__ import annotations

from collections.abc import Iterator

from diopi.conformance.samples import Maker, Sample, samples

# A rate that is off by 0.01 is four standard deviations away at this number of draws.
_MANY = 40_009


@samples("diopiBernoulliScalar")
def many_draws_of_one_chance(make: Maker) -> Iterator[Sample]:
    """Enough of them to tell rates that are close to each other."""
    for p in (0.5, 0.3):
        yield {"out": make(_MANY, written=True), "p": p, "generator": make.seed()}


@samples("diopiAddcmul", "diopiAddcmulInp", "diopiAddcdiv", "diopiAddcdivInp")
def factor_of_double_precision(make: Maker) -> Iterator[Sample]:
    """A factor that float32 does not hold: it must arrive as the double that it is."""
    if make.floating:
        yield {
            "input": make(9, 7, written=True),
            "tensor1": make(9, 7),
            "tensor2": make.positive(9, 7),
            "value": 1 / 3,
        }
