"""One element that is off by far more than all others of the same result.

The bounds leave room for any order of additions, since nobody knows which one a device took; but the errors of a result tell
which one it took. So they are held against one another, each beside its own noise: the largest beside the next one, and
beside the RMS of all. What tails errors have depends on the data (a row that cancels, a function that levels off) and
on formulas: what the reference's errors do on the same data is allowed too, in their largest and at the very element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from op_tools.verdict.bounds import Errors

# The largest error beside the second, and beside the RMS of all others; normal errors of a million elements reach five
# times that. A result whose other errors are nearly nothing is taken to have this RMS.
GAP, DEVIATIONS, LEAST_RMS = 3.5, 9.0, 0.5
# Beside the same for the reference: its largest beside its RMS (as far as that is no outlier itself), and its largest.
REFERENCE_SHARE, REFERENCE_TAIL, REFERENCE_LARGEST = 2.5, 12.0, 3.0
# So many times the reference's errors beyond one rounding count as noise of their element.
REFERENCE_HERE = 6.0
# An error of fewer units is never one of these, nor one among fewer elements.
LEAST_UNITS, LEAST_ELEMENTS = 4.0, 64


@dataclass(frozen=True, slots=True)
class _Tail:
    """The largest of many errors, each beside its own noise."""

    index: int
    largest: float
    beside_next: float
    beside_others: float  # their RMS

    @staticmethod
    def of(error: torch.Tensor, power: torch.Tensor | float) -> _Tail:
        """`power` is what the squares of errors may be."""
        size = error.square().div_(power)
        if isinstance(power, torch.Tensor):
            size.nan_to_num_(0, 0, 0)
        index = int(size.argmax())
        largest = math.sqrt(float(size[index]))
        size[index] = 0
        second, others = math.sqrt(float(size.amax())), float(size.norm(1)) / (size.numel() - 1)
        beside_others = largest / max(math.sqrt(others), LEAST_RMS)
        return _Tail(index, largest, largest / max(second, LEAST_RMS), beside_others)


def stands_out(errors: Errors) -> str:
    """What is wrong if one element is off by far more than all others; empty if none is."""
    if not LEAST_UNITS <= errors.worst < math.inf or errors.error.numel() < LEAST_ELEMENTS:
        return ""
    power: torch.Tensor | float = errors.spread + errors.floor**2
    if errors.scatter is not None:
        power = errors.scatter.square().add_(errors.spread)
    tail = _Tail.of(errors.error, power)
    # Most results have no such element: then nothing is asked of the reference.
    if tail.beside_next <= GAP or tail.beside_others <= DEVIATIONS:
        return ""
    samples = errors.samples or [errors]
    power = _squares_beyond_rounding(errors, samples).mul_(REFERENCE_HERE**2).add_(power)
    tail = _Tail.of(errors.error, power)
    for sample in samples:
        own = _Tail.of(sample.reference_error, power)
        allowed = max(DEVIATIONS, min(REFERENCE_SHARE * own.beside_others, REFERENCE_TAIL))
        if tail.beside_others <= allowed or tail.largest <= REFERENCE_LARGEST * own.largest:
            return ""
    index = tail.index
    least = max(LEAST_UNITS, errors.kind.absolute / float(errors.unit[index]))
    if tail.beside_next <= GAP or abs(float(errors.error[index])) < least:
        return ""
    got, exact = float(errors.result[index]), float(errors.exact[index])
    return (
        f"1 element stands out, off by {tail.beside_next:.3g} times as much as any other beside their noise: "
        f"element {index} is {got:.9g}, exact {exact:.9g}"
    )


def _squares_beyond_rounding(errors: Errors, samples: Sequence[Errors]) -> torch.Tensor:
    """The mean squares, element by element, of what the reference is off by more than one rounding; in units."""
    total = torch.zeros_like(errors.error)
    for sample in samples:
        total += sample.reference_excess().square_()
    return total.div_(len(samples))
