"""Models of arithmetic with less precision than the dtype promises, and which of them explains an error.

A chip may multiply float32 matrices in TF32 or add halves in half precision, by choice or by design. Such a
result is not right, but it is not broken either, and saying which arithmetic it looks like is what helps. A
model explains an error only if the error has its size everywhere, no outliers, no bias and no proportion to
the result: what is left are roundings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from op_tools.categories import Category
from op_tools.perturbation import ROUNDING
from op_tools.rounding import Format, format_of, unit_in_last_place

# The largest rounding of an input, relative to it.
TF32, BF16 = 2.0**-11, 2.0**-8
# Uniform roundings up to r have RMS r / sqrt 3 at the bottom of a binade, half of that at its top.
_UNIFORM = 3**-0.5
# The RMS error may lie between these multiples of the model's: roundings toward zero double it, and a chip that
# rounds one of two operands has 0.7 of it.
LEAST, MOST = 0.15, 2.5
# The largest error beside their RMS. A million normal errors reach 5; row scales widen that.
OUTLIER = 8.0
# A model must hurt everywhere: at least this part of the elements lies beyond the bound of full precision.
LEAST_AFFECTED = 0.01
# Roundings do not follow the value: the correlation of error and value stays below this (plus chance).
CORRELATION = 0.3
# Adding L numbers one after the other in half precision: errors grow to 0.41 sqrt(L) roundings (normal terms).
SEQUENTIAL = 0.6
# A value that is stored with few bits on purpose may be off by so many of their steps.
CARRIED_STEPS = 4.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one result that full precision does not explain."""

    result: torch.Tensor  # flat float64
    exact: torch.Tensor
    error: torch.Tensor
    noise: torch.Tensor  # of one rounding of float32
    beyond: torch.Tensor  # where the bound of full precision was left
    form: Format
    category: Category
    length: float  # how many terms one element sums
    own: torch.Tensor  # the reference's result in the dtype, flat float64
    independent: float  # how many errors are not made of each other: running sums share theirs


def explanation(evidence: Evidence) -> str | None:
    """Which arithmetic the error looks like; None where none explains it."""
    error = evidence.error
    if not error.numel() or not bool(torch.isfinite(error).all()):
        return None
    if _follows_value(error, evidence.exact, evidence.independent):
        return None
    if evidence.form.dtype == torch.float32:
        return _carried(evidence) or _rounded_inputs(evidence)
    return _half_sums(evidence)


def _follows_value(error: torch.Tensor, exact: torch.Tensor, independent: float) -> bool:
    norms = float(error.square().sum().sqrt() * exact.square().sum().sqrt())
    if norms == 0:
        return False
    return abs(float((error * exact).sum())) / norms > CORRELATION + 3 / math.sqrt(independent)


def _widespread(evidence: Evidence) -> bool:
    affected = int(evidence.beyond.sum())
    return affected >= 2 and affected >= LEAST_AFFECTED * evidence.error.numel()


def _carried(evidence: Evidence) -> str | None:
    """Every value fits a shorter format, and the reference's values do not."""
    if evidence.error.numel() < 8:
        return None
    for dtype in (torch.bfloat16, torch.float16):
        form = format_of(dtype)
        assert form is not None
        fits = evidence.result.to(dtype).to(torch.float64) == evidence.result
        own_fits = evidence.own.to(dtype).to(torch.float64) == evidence.own
        steps = evidence.error.abs() / unit_in_last_place(evidence.exact, form)
        if bool(fits.all()) and float(own_fits.double().mean()) < 0.5 and float(steps.max()) <= CARRIED_STEPS:
            return f"values carry only {_name(dtype)}"
    return None


def _rounded_inputs(evidence: Evidence) -> str | None:
    """A product of matrices whose inputs were rounded before they were multiplied."""
    if evidence.category != "matmul" or not _widespread(evidence):
        return None
    for name, roundoff in (("TF32", TF32), ("bfloat16 inputs", BF16)):
        share = evidence.error / (evidence.noise * (roundoff / ROUNDING * _UNIFORM)).clamp_(min=1e-300)
        rms = float(share.square().mean().sqrt())
        if LEAST <= rms <= MOST and float(share.abs().max()) <= OUTLIER * rms:
            return f"behaves like {name}"
    return None


def _half_sums(evidence: Evidence) -> str | None:
    """Partial sums that were rounded to the half format on their way."""
    if evidence.length < 2 or evidence.category in ("elementwise", "movement") or not _widespread(evidence):
        return None
    magnitude = torch.maximum(evidence.exact.abs(), evidence.noise / ROUNDING)
    steps = evidence.error / (magnitude * evidence.form.roundoff).clamp_(min=1e-300)
    rms = float(steps.square().mean().sqrt())
    if rms > max(SEQUENTIAL * math.sqrt(evidence.length), 1.0) or float(steps.abs().max()) > OUTLIER * rms:
        return None
    return f"behaves like accumulation in {_name(evidence.form.dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
