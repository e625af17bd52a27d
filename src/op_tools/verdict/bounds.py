"""The rule that tells rounding from faults: how large, how many, and how lopsided errors may be.

t is the exact (float64) result, d the device's, r the reference's in the operator's own dtype; u is the unit in
the last place of t. Errors (value - t) and noise (what correct arithmetic scatters by) are counted in u, in
float32. The first constants come from the definition of the formats, textbook error growth and the prototype's published
figures, before any corpus was drawn. Those for the reference's errors, the confirming step and the bias were added
after looking at results of an H200 and of the reordered host device; the figures in benchmarks/results are from seeds
drawn afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from op_tools.reference.perturbation import ROUNDING
from op_tools.verdict.noise import NoiseLevel, Reruns, estimate
from op_tools.verdict.rounding import Format, error_against, real_parts, unit_in_last_place

DOUBLE_ROUNDING = 2.0**-53

# Rounding to nearest is off by at most half a unit; the rest is for t's own roundings.
BASE = 0.502
# How many times its noise an element may be off. Noise is an RMS of single roundings of the inputs; the roundings
# of the sums come on top, and a large tensor reaches five standard deviations.
MULTIPLE = 16.0
# Where the reference itself needs more, the device gets this many times what the reference needs.
REFERENCE_SHARE = 2.0
# ... but in wide formats not without end: one odd element of the reference must not excuse all of the device's.
REFERENCE_CAP = 64.0
# Errors of a chain of L float32 additions grow with sqrt(L) (0.3 noise units each step, largest of many 4.5 times
# that); up to this length the multiple covers it, beyond it both limits grow.
FREE_LENGTH = 121.0
# Nobody adds more than this many terms one after the other.
LONGEST_CHAIN = 16384.0
# The reference's own errors, sampled: a device may be off by this many of their standard deviations. Where the reference
# rounds inside (a part of at least REFERENCE_HABIT of its results is off by more than one rounding), so may the
# device, in any element.
REFERENCE_DEVIATIONS = 6.0
REFERENCE_HABIT = 0.02
# The RMS of errors, in units of u^2/12 (rounding to nearest) and RMS_NOISE times the noise.
RMS_NOISE = 4.0
RMS_LIMIT = 1.25
RMS_REFERENCE = 1.5
# Bias: among errors above a fiftieth of u, the mean sign beside the value's. Truncation gives -1, rounding 0.
BIAS_LEAST = 0.02
BIAS_SAMPLES = 64
BIAS_SIGN = 0.6
BIAS_DEVIATIONS = 6.0
# Truncation is half a unit low on average; small one-sided errors of a good approximation are no fault.
BIAS_SIZE = 0.3
# Truncation is never off by more than a unit, by 0.58 in the RMS. Larger errors are those of sums, and sums share them.
BIAS_RMS = 0.75
# A quotient by a scalar may be a product with its rounded reciprocal: without the common factor, rounding to nearest
# remains. The factor is a fit: so many units in the last place, over the root of the number of elements, are its error.
SCALED_ROUNDING = 1.2
# Every value has at least the noise of one rounding of the arithmetic, in the middle of a binade.
_MIDDLE = 0.75
# Above this float32 cannot square.
_LARGEST_SQUARED = 1e18


@dataclass(frozen=True, slots=True)
class BoundCheck:
    """What a check found; `reason` is empty when nothing is wrong."""

    reason: str
    over_bound: float
    rms: float
    biased: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceNeeds:
    """What the reference's own errors ask for."""

    multiple: float = 0.0
    rms: float = 0.0


def growth(length: float) -> float:
    """By how much limits widen for sums of `length` terms."""
    return max(1.0, math.sqrt(min(length, LONGEST_CHAIN) / FREE_LENGTH))


class Errors:
    """The errors of one result in units of its last place. Tensors given are flat and in float64."""

    def __init__(
        self,
        result: torch.Tensor,
        own: torch.Tensor,
        exact: torch.Tensor,
        form: Format,
        widening: float = 1.0,
    ) -> None:
        self.result, self.own, self.exact, self.form, self.widening = result, own, exact, form, widening
        self.unit = unit_in_last_place(exact, form)
        self.error = self._in_units(result)
        # One rounding of the arithmetic, float32's or the format's own if that is finer.
        self.floor = _MIDDLE * 2.0 ** (form.bits - max(24, form.bits))
        self.worst = _largest(self.error)

    def _in_units(self, value: torch.Tensor) -> torch.Tensor:
        error = error_against(value, self.exact, self.form.overflow)
        if self.form.may_flush and float(self.unit.amin()) * BASE < self.form.smallest_normal:
            # Zero for a number below the normal ones is a choice of the chip.
            tiny = self.exact.abs() < self.form.smallest_normal
            error[tiny & (error.abs() <= self.form.smallest_normal)] = 0
        return error.div_(self.unit).float()

    def check_without_noise(self) -> BoundCheck:
        """The limits with the noise of one rounding, the least that any arithmetic has."""
        bound = BASE + MULTIPLE * self.widening * self.floor
        if self.worst > bound:
            return BoundCheck("not explained by one rounding", self.worst / bound, math.nan)
        expected = 1 / 12 + (RMS_NOISE * self.widening * self.floor) ** 2
        rms = float(self.error.norm()) / math.sqrt(max(1, self.error.numel()) * expected)
        return self._average(rms, ReferenceNeeds(), self.worst / bound)

    def needs(self, noise: torch.Tensor) -> ReferenceNeeds:
        """What the reference needs under this noise (in units)."""
        error = self._reference_error()
        multiple = float(error.abs().sub_(BASE).div_(noise).amax()) if error.numel() else 0.0
        if self.form.bits > 16:
            multiple = min(multiple, MULTIPLE * REFERENCE_CAP)
        return ReferenceNeeds(max(multiple, 0.0), self._rms(error, noise))

    def reference_excess(self) -> torch.Tensor:
        """By how much the reference's own errors exceed one rounding, in units."""
        return self._reference_error().abs_().sub_(BASE).clamp_(min=0)

    def reference_noise(self, columns: int) -> torch.Tensor:
        """Noise as the reference's own errors show it row by row, beyond what one rounding explains."""
        noise = self.by_rows(self.reference_excess(), columns)
        return noise.mul_(REFERENCE_DEVIATIONS / (MULTIPLE * self.widening)).add_(self.floor)

    def by_rows(self, noise: torch.Tensor, columns: int) -> torch.Tensor:
        """The RMS of a row's noise for each of its elements: sums and their roundings are of one size along a row."""
        if columns < 2 or noise.numel() % columns:
            return noise.clone()
        unit = self.unit.view(-1, columns)
        rms = noise.view(-1, columns).mul(unit).square_().mean(1, keepdim=True).sqrt_()
        return (rms / unit).reshape(-1).to(noise.dtype)

    def _reference_error(self) -> torch.Tensor:
        """Where the reference itself overflowed, it excuses nothing but the same."""
        return torch.where(self.own.isfinite(), self._in_units(self.own), 0.0)

    def check(self, noise: torch.Tensor, needs: ReferenceNeeds, strictness: float = 1.0) -> BoundCheck:
        """Hold the errors against the three limits; `strictness` narrows the first."""
        multiple = max(MULTIPLE * self.widening / strictness, REFERENCE_SHARE * needs.multiple)
        share = self.error.abs().div_(noise.mul(multiple).add_(BASE))
        worst = _largest(share)
        if math.isnan(worst):
            # Where t is zero its unit is so small that error and noise overflow float32: infinity over infinity.
            limit = noise.double().mul_(multiple).add_(BASE).mul_(self.unit)
            again = (self.result - self.exact).abs_().div_(limit).nan_to_num_(math.inf, math.inf).float()
            share = torch.where(share.isnan(), again, share)
            worst = float(share.amax())
        if worst > 1:
            # Whatever the reference gives bit for bit is right by definition (odd roundings at a jump, say).
            share[(self.result == self.own) | (self.result.isnan() & self.own.isnan())] = 0
            worst = float(share.amax())
        if worst > 1:
            return BoundCheck(self._worst_reason(share, worst), worst, math.nan, self._bias is not None)
        return self._average(self._rms(self.error, noise), needs, worst)

    def _average(self, rms: float, needs: ReferenceNeeds, worst: float) -> BoundCheck:
        chance = 1 + 4 / math.sqrt(2 * max(1, self.error.numel()))
        share = rms / (max(RMS_LIMIT, RMS_REFERENCE * needs.rms) * chance)
        reason = self._bias or ""
        if share > 1:
            reason = f"errors are {share:.3g} times as large on average as rounding explains"
        return BoundCheck(reason, worst, share, self._bias is not None)

    def _rms(self, error: torch.Tensor, noise: torch.Tensor) -> float:
        if not error.numel():
            return 0.0
        scale = RMS_NOISE * self.widening
        expected = noise.mul(scale).clamp_(max=_LARGEST_SQUARED).square_().add_(1 / 12).sqrt_()
        # Where noise is that far above the unit, its own size says the same.
        if _largest(noise) > _LARGEST_SQUARED / scale:
            expected = torch.maximum(expected, noise * scale)
        return float(error.div(expected).norm()) / math.sqrt(error.numel())

    @cached_property
    def _bias(self) -> str | None:
        """Truncation: errors on one side of the values, half a unit of it on average."""
        side = _side(self.error, self.exact)
        if side is None or abs(side.size) <= BIAS_SIZE:
            return None
        own = _side(self._in_units(self.own), self.exact)
        if own is not None and abs(side.deviation) <= 2 * abs(own.deviation):
            return None
        if side.mean > 0 or self._is_scaled():
            return None
        return f"errors lean towards zero ({abs(side.mean):.0%} more on that side), as truncation does"

    def _is_scaled(self) -> bool:
        """Rounded to nearest, but of a value that is off by one rounding throughout: a product with a rounded reciprocal."""
        error = self.error.double() * self.unit
        power = float(self.exact @ self.exact)
        slope = float(error @ self.exact) / power if power > 0 else 0.0
        if abs(slope) > 2.0**-self.form.bits:
            return False
        rest = self.error - (self.exact * slope / self.unit).float()
        return _largest(rest) <= BASE + SCALED_ROUNDING / math.sqrt(rest.numel())

    def _worst_reason(self, share: torch.Tensor, worst: float) -> str:
        index = int(share.argmax())
        count = int((share > 1).sum())
        got, exact = float(self.result[index]), float(self.exact[index])
        many = "1 element is" if count == 1 else f"{count} of {share.numel()} elements are"
        times = "not explained by any rounding" if math.isinf(worst) else f"up to {worst:.3g} times the bound"
        return f"{many} off, {times}: element {index} is {got:.9g}, exact {exact:.9g}"


def with_reference_errors(
    errors: Errors, samples: list[Errors], columns: int, noise: torch.Tensor
) -> tuple[torch.Tensor, ReferenceNeeds]:
    """Noise with what the reference's own errors add, element by element, and what their RMS asks for.

    Inner roundings to a half format, or those that cancellation blows up, show there, and no perturbation of
    the inputs shows them.
    """
    squares = torch.zeros_like(errors.exact)
    habits = []
    for sample in samples:
        excess = sample.reference_excess()
        habits.append(excess[excess > BIAS_LEAST])
        squares += (excess * sample.unit).square_()
    variation, _ = estimate(squares.div_(len(samples)), len(samples), errors.exact, columns, 1.0)
    in_units = (variation / errors.unit).float()
    beyond = torch.cat(habits)
    if beyond.numel() >= REFERENCE_HABIT * len(samples) * max(1, squares.numel()):
        in_units = in_units.clamp(min=float(beyond.median()))
    noise = noise + in_units * (REFERENCE_DEVIATIONS / (MULTIPLE * errors.widening))
    return noise, ReferenceNeeds(0.0, max(sample.needs(noise).rms for sample in samples))


@dataclass(frozen=True, slots=True)
class _Side:
    mean: float
    deviation: float
    size: float


def _side(error: torch.Tensor, exact: torch.Tensor) -> _Side | None:
    """The mean sign of errors beside their values', how surprising it is, and their mean; None if unremarkable."""
    if error.numel() < BIAS_SAMPLES:
        return None
    outward = exact.float().sign_().mul_(error).nan_to_num_(0, 2, -2).clamp_(-2, 2)
    # A mean of BIAS_SIZE over errors of at most 2 leaves a sum of at least this part of their squares.
    if abs(float(outward.sum())) < BIAS_SIZE / 4 * float(outward @ outward):
        return None
    used = outward[outward.abs() > BIAS_LEAST]
    count = used.numel()
    if count < BIAS_SAMPLES:
        return None
    mean = float(used.sign().mean())
    deviation = mean * math.sqrt(count)
    sums_share_them = float(used.norm()) > BIAS_RMS * math.sqrt(count)
    if abs(mean) <= BIAS_SIGN or abs(deviation) <= BIAS_DEVIATIONS or sums_share_them:
        return None
    return _Side(mean, deviation, float(used.mean()))


def _largest(values: torch.Tensor) -> float:
    if not values.numel():
        return 0.0
    low, high = values.aminmax()
    return max(-float(low), float(high))


def columns_of(exact: torch.Tensor) -> int:
    """The length of a row of the flat parts of a result."""
    return exact.shape[-1] * (2 if exact.is_complex() else 1) if exact.dim() else 1


def measured_noise(
    reruns: Reruns, errors: Errors, index: int, columns: int
) -> tuple[torch.Tensor, NoiseLevel | None]:
    """The noise of the reruns made so far, in units of the last place, and what of it is worth keeping."""
    variance = reruns.variance(index)
    if variance is None or variance.numel() != errors.exact.numel():
        return torch.full_like(errors.error, errors.floor), None
    scale = DOUBLE_ROUNDING / ROUNDING if errors.form.dtype == torch.float64 else 1.0
    noise, level = estimate(variance, reruns.count, errors.exact, columns, scale)
    return noise.div_(errors.unit).float().add_(errors.floor), level


def errors_of_variants(
    variants: Sequence[tuple[list[Any], list[Any]]], errors: Errors, index: int
) -> list[Errors]:
    """The reference's errors on inputs of other last bits, from its (own, truth) there."""
    samples = []
    for own, exact in variants:
        parts, expected = real_parts(own[index]), real_parts(exact[index])
        if parts.numel() == expected.numel() == errors.exact.numel():
            samples.append(Errors(parts, parts, expected, errors.form, errors.widening))
    return samples
