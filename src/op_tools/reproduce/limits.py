"""How far a result may be off: the bounds of the verdict as numbers that can be written into a file.

The verdict passes what stays below its bound at any of its stages. Here all of them are paid for and joined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from op_tools.categories import Category
from op_tools.reference.recompute import Recomputation
from op_tools.verdict.bounds import (
    RMS_LIMIT,
    RMS_REFERENCE,
    Errors,
    columns_of,
    errors_of_variants,
    measured_noise,
    with_reference_errors,
)
from op_tools.verdict.judgement import CONFIRMING_STRICTNESS, RERUNS_TO_CONFIRM, variants_of
from op_tools.verdict.lengths import kind_of, summed_terms
from op_tools.verdict.noise import Reruns
from op_tools.verdict.rounding import format_of, real_parts

__all__ = ["ErrorLimits", "envelope", "limits_of"]

# A correct result must have this much room: other processors round other sums.
ROOM = 1.5


@dataclass(frozen=True)
class ErrorLimits:
    """Of one result, flat (the parts of complex values one after the other), in its own units."""

    exact: torch.Tensor
    allowed: torch.Tensor  # how far each element may be off
    expected: torch.Tensor  # how far it is off on average
    rms: float  # most that the RMS of (error / expected) may be
    or_as_cpu: bool  # the reference itself is off further: what it gives is right by definition


def limits_of(reference: Recomputation, index: int, category: Category) -> ErrorLimits | None:
    """The limits of the result number `index`; None where there is no float64 result to count from."""
    own, truth = reference.own()[index], reference.truth()
    exact = truth[index] if truth is not None else None
    form = format_of(own.dtype)
    if form is None or not isinstance(exact, torch.Tensor) or exact.shape != own.shape:
        return None
    mine = real_parts(own)
    kind = kind_of(category, reference, exact, summed_terms(category, reference, exact), form)
    errors = Errors(mine, mine, real_parts(exact).clone(), form, kind)
    columns = columns_of(exact)
    reruns = Reruns(reference)
    reruns.extend(RERUNS_TO_CONFIRM)  # as many as the verdict pays before it reports a failure
    measured, _ = measured_noise(reruns, errors, index, columns)
    samples = [errors, *errors_of_variants(variants_of(reference), errors, index)]
    noise, needs = with_reference_errors(errors, samples, columns, measured)
    for pooled in (errors.by_rows(measured, columns), errors.reference_noise(columns)):
        noise = torch.maximum(noise, pooled * CONFIRMING_STRICTNESS)
    noise = noise.double()
    multiple = errors.multiple / CONFIRMING_STRICTNESS
    tiny = form.smallest_normal if form.may_flush else 0.0
    allowed = (errors.base + noise * multiple) * errors.unit + tiny
    expected = ((noise * errors.rms_noise).square() + errors.spread).sqrt() * errors.unit + tiny
    chance = 1 + 4 / math.sqrt(2 * max(1, mine.numel()))
    off = errors.error.double().abs() * errors.unit
    beyond = off > allowed
    # What the reference needs within its bound gets room; what lies beyond is a jump, and excused one by one.
    allowed = torch.where(beyond, allowed, torch.maximum(allowed, off * ROOM))
    return ErrorLimits(
        errors.exact,
        allowed,
        expected,
        max(RMS_LIMIT, RMS_REFERENCE * needs.rms) * chance,
        bool(beyond.any()),
    )


def envelope(limits: ErrorLimits) -> tuple[float, float]:
    """(rtol, atol) of the narrowest rtol * |exact| + atol that nowhere lies below the allowed errors."""
    finite = limits.exact.isfinite() & limits.allowed.isfinite()
    size, allowed = limits.exact[finite].abs(), limits.allowed[finite]
    if not allowed.numel():
        return 0.0, 0.0
    best, chosen = math.inf, (0.0, float(allowed.max()))
    # Powers of two in steps of a quarter cover every format; the last is an error as large as the value.
    for quarter in range(-56 * 4, 1, 2):
        rtol = 2.0 ** (quarter / 4)
        atol = max(0.0, float((allowed - rtol * size).max()))
        excess = float(((rtol * size + atol) / allowed).mean())
        if excess < best:
            best, chosen = excess, (rtol, atol)
    rtol, atol = chosen
    return _shortened(rtol), _shortened(atol)


def _shortened(number: float) -> float:
    """Three digits, and never less than given."""
    return float(f"{number * 1.005:.2e}") if number else 0.0
