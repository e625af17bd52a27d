"""Models of arithmetic with less precision than the dtype promises, and which of them explains an error.

A chip may multiply float32 matrices in TF32 or add half values in half precision, by choice or by design. Such a
result is not right, but it is not broken either, and saying which arithmetic it looks like is what helps. A
model explains an error only if the error has its size everywhere, no outliers, no bias and no proportion to
the result: what is left are roundings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from op_tools.categories import Category
from op_tools.reference.perturbation import ROUNDING
from op_tools.verdict.bounds import growth
from op_tools.verdict.rounding import Format, format_of, unit_in_last_place

# The largest rounding of an input, relative to it.
TF32, BF16 = 2.0**-11, 2.0**-8
# Uniform roundings up to r have RMS r / sqrt 3 at the bottom of a binade, half of that at its top.
_UNIFORM = 3**-0.5
# The RMS error is at most this multiple of the model's: roundings toward zero double it.
MOST = 2.5
# Inputs that are cut off instead of rounded shrink a product by up to two roundings; more is no rounding.
SHRINKS = 2.2
# The largest error beside their RMS: a million normal errors reach 5, row scales widen that. Up to this many roundings
# of the model are never an outlier.
OUTLIER, FEW_ROUNDINGS = 12.0, 5.0
# A model hurts in more than one element: so many elements are off by more than one rounding and so many times the noise.
# A single wrong element among thousands is a fault; so is that of a tiny result, unless TINY_ROUNDINGS more do it.
TINY_ROUNDINGS = 2.0
# Rounded inputs hurt far more than float32 does: this part of its elements at least.
FEWEST_AFFECTED, BEYOND_NOISE, TINY_RESULT, LEAST_AFFECTED = 3, 5.0, 64, 0.03
# Roundings do not follow the value: the correlation of error and value stays below this (plus chance), or the share of
# the value that follows it below half a rounding.
CORRELATION, FOLLOWING = 0.3, 0.5
# Adding L numbers one after the other in half precision: errors grow to 0.41 sqrt(L) roundings (normal terms). A few
# roundings inside an operator that adds nothing stay below SEVERAL.
SEQUENTIAL, SEVERAL = 0.6, 1.0
# A value that is stored with few bits on purpose may be off by so many of their steps.
CARRIED_STEPS = 4.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one result that full precision does not explain."""

    result: torch.Tensor  # flat float64
    exact: torch.Tensor
    error: torch.Tensor
    noise: torch.Tensor  # what one rounding of float32 in the inputs changes
    form: Format
    category: Category
    length: float  # how many terms one element sums
    own: torch.Tensor  # the reference's result in the dtype, flat float64
    independent: float  # how many errors are not made of each other: running sums share theirs
    inputs: torch.dtype  # the shortest floating type among the inputs


def explanation(evidence: Evidence) -> str | None:
    """Which arithmetic the error looks like; None where none explains it."""
    error = evidence.error
    if not error.numel() or not bool(torch.isfinite(error).all()) or not _widespread(evidence):
        return None
    if evidence.form.dtype == torch.float32:
        return _carried(evidence) or _rounded_inputs(evidence) or _half_sums(evidence)
    return _half_inside(evidence, evidence.form)


def _slope(error: torch.Tensor, exact: torch.Tensor) -> float:
    """The share of the value that the error is, by least squares."""
    power = float(exact @ exact)
    return float(error @ exact) / power if power > 0 else 0.0


def _follows_value(error: torch.Tensor, exact: torch.Tensor, independent: float) -> bool:
    """Errors (in roundings) that are a share of the values: a wrong scale, not a rounding."""
    norms = float(error.norm() * exact.norm())
    if norms == 0:
        return False
    related = abs(float(error @ exact)) / norms > CORRELATION + 3 / math.sqrt(independent)
    return related and abs(_slope(error, exact)) > FOLLOWING


def _widespread(evidence: Evidence) -> bool:
    one_rounding = unit_in_last_place(evidence.exact, evidence.form) * 0.5
    noise = (evidence.noise + evidence.exact.abs() * ROUNDING) * growth(evidence.length)
    affected = int((evidence.error.abs() > one_rounding + noise * BEYOND_NOISE).sum())
    count = evidence.error.numel()
    if count < TINY_RESULT:
        # Shorter arithmetic touches every element; a single one that is off among good ones is a fault.
        return affected >= max(1, count / 2)
    share = LEAST_AFFECTED if evidence.form.dtype == torch.float32 else 0.0
    return affected >= max(FEWEST_AFFECTED, share * count)


def _has_outliers(shares: torch.Tensor, rms: float, tiny: float = TINY_ROUNDINGS) -> bool:
    allowed = tiny if shares.numel() < TINY_RESULT else max(FEW_ROUNDINGS, OUTLIER * rms)
    return float(shares.abs().max()) > allowed


def _carried(evidence: Evidence) -> str | None:
    """Every value fits a shorter format, and the reference's values do not."""
    if evidence.error.numel() < 8:
        return None
    for dtype in (torch.bfloat16, torch.float16):
        form = format_of(dtype)
        assert form is not None
        fits = evidence.result.to(dtype).to(torch.float64) == evidence.result
        own_fits = evidence.own.to(dtype).to(torch.float64) == evidence.own
        carried = bool(fits.all()) and bool(evidence.result.any()) and float(own_fits.double().mean()) < 0.5
        steps = evidence.error.abs() / unit_in_last_place(evidence.exact, form)
        if carried and float(steps.max()) <= CARRIED_STEPS:
            return f"values carry only {_name(dtype)}"
    return None


def _rounded_inputs(evidence: Evidence) -> str | None:
    """A product of matrices whose inputs were rounded, or cut off, before they were multiplied."""
    if evidence.category != "matmul":
        return None
    slope = _slope(evidence.error, evidence.exact)
    for name, roundoff in (("TF32", TF32), ("bfloat16 inputs", BF16)):
        if abs(slope) > SHRINKS * roundoff:
            continue
        rest = evidence.error - evidence.exact * slope
        share = rest / (evidence.noise * (roundoff / ROUNDING * _UNIFORM)).clamp_(min=1e-300)
        rms = float(share.norm()) / math.sqrt(share.numel())
        if rms <= MOST and not _has_outliers(share, rms):
            return f"behaves like {name}"
    return None


def _half_sums(evidence: Evidence) -> str | None:
    """Sums of half values that are given back in float32 but were added in half precision, as batch norm's gradients may be."""
    form = format_of(evidence.inputs) if evidence.inputs in (torch.bfloat16, torch.float16) else None
    return _half_inside(evidence, form) if form is not None and evidence.length >= 2 else None


def _half_inside(evidence: Evidence, form: Format) -> str | None:
    """Partial sums or other inner results that were rounded to the half format on their way."""
    roundoff = form.roundoff
    magnitude = torch.maximum(evidence.exact.abs(), evidence.noise / ROUNDING)
    magnitude.clamp_(min=form.smallest_normal)
    steps = evidence.error / (magnitude * roundoff)
    # What is rounded to a unit or two, or to nothing, follows its value by necessity.
    large = evidence.exact.abs() > form.smallest_normal
    as_given = evidence.error[large] / roundoff, evidence.exact[large]
    leveled = steps[large], (evidence.exact / magnitude)[large]
    # In the large values and in all alike: a few elements, or a few rows, must not decide it.
    if all(_follows_value(error, exact, evidence.independent) for error, exact in (as_given, leveled)):
        return None
    rms = float(steps.norm()) / math.sqrt(steps.numel())
    most = max(SEQUENTIAL * math.sqrt(evidence.length), SEVERAL)
    tiny = TINY_ROUNDINGS * (most if form is not evidence.form else 1.0)
    if rms > most or _has_outliers(steps, rms, tiny):
        return None
    if evidence.length >= 2:
        return f"behaves like accumulation in {_name(form.dtype)}"
    return f"behaves like {_name(form.dtype)} inside"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
