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
from op_tools.verdict.outliers import stands_out
from op_tools.verdict.rounding import Format, error_against, real_parts, unit_in_last_place
from op_tools.verdict.systematic import LEAN_LEAST, common_factor, one_lane, pure_factor, truncation

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
# Sums of a few terms have less: of one or two this part.
SHORTEST = 0.35
# Nobody adds more than this many terms one after the other.
LONGEST_CHAIN = 16384.0
# The reference's own errors, sampled: a device may be off by this many of their standard deviations. Where the reference
# rounds inside (a part of at least REFERENCE_HABIT of its results is off by more than one rounding), so may the
# device, in any element.
REFERENCE_DEVIATIONS = 6.0
REFERENCE_HABIT = 0.02
# ... by a rounding or two; what cancels by more does so where it does, and not in any element.
HABIT_UNITS = 2.0
# The RMS of errors, in units of u^2/12 (rounding to nearest) and RMS_NOISE times the noise.
RMS_NOISE = 4.0
RMS_LIMIT = 1.25
RMS_REFERENCE = 1.5
# Functions of a few steps, element by element: so many units of the arithmetic are the libraries' own errors (pow and the
# like reach four; gradients where the function levels off, half as many again), of so much RMS. Noise counts only beyond that of
# a well-conditioned function, and fewer times, since nothing adds up.
DIRECT_UNITS, DIRECT_RMS = 4.0, 1.25
DIRECT_MULTIPLE, DIRECT_RMS_NOISE, DIRECT_FREE = 4.0, 2.0, 1.5
# Elementary functions of 2 units, and scales made of a few of them, lean by up to four roundings; attention is divided by
# a sum of exponentials that lean, and by more (six were seen on a card).
WIDE_ROUNDINGS, ATTENTION_ROUNDINGS = 4.0, 6.75
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


def growth(length: float, least: float = 1.0) -> float:
    """By how much limits widen for sums of `length` terms, or narrow if they are short."""
    return max(least, math.sqrt(min(length, LONGEST_CHAIN) / FREE_LENGTH))


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of the arithmetic behind a result."""

    widening: float = 1.0  # by how much limits widen for long sums
    direct: float = 0.0  # element by element, in a few steps: so many units are its own errors
    absolute: float = 0.0  # an error that any element may have, whatever its size
    columns: int = 1  # the length of a row whose elements may share a scale
    leaning: float = WIDE_ROUNDINGS  # roundings of a wide format by which all results may be off together


SUMMED = Kind()


class Errors:
    """The errors of one result in units of its last place. Tensors given are flat and in float64."""

    def __init__(
        self,
        result: torch.Tensor,
        own: torch.Tensor,
        exact: torch.Tensor,
        form: Format,
        kind: Kind = SUMMED,
    ) -> None:
        self.result, self.own, self.exact, self.form, self.kind = result, own, exact, form, kind
        self.direct = kind.direct > 0
        self.unit = unit_in_last_place(exact, form)
        self.error = self._in_units(result)
        # A unit of the arithmetic, float32's or the format's own if that is finer; and one rounding of it.
        step = 2.0 ** (form.bits - max(24, form.bits))
        self.floor = 0.0 if self.direct else _MIDDLE * step
        self.base = BASE + kind.direct * step
        self.free = DIRECT_FREE * step if self.direct else 0.0
        self.multiple = DIRECT_MULTIPLE if self.direct else MULTIPLE * kind.widening
        self.rms_noise = DIRECT_RMS_NOISE if self.direct else RMS_NOISE * kind.widening
        self.spread = 1 / 12 + ((DIRECT_RMS * step) ** 2 if self.direct else 0.0)
        self.worst = _largest(self.error)
        self.moves: list[torch.Tensor] = []  # what reruns with moved inputs change, in units
        self.samples: list[
            Errors
        ] = []  # the reference's errors on inputs of other last bits; this one among them
        self.scatter: torch.Tensor | None = None  # the noise last measured, as it is, in units

    def _in_units(self, value: torch.Tensor) -> torch.Tensor:
        error = error_against(value, self.exact, self.form.overflow)
        if self.form.may_flush and float(self.unit.amin()) * BASE < self.form.smallest_normal:
            # Zero for a number below the normal ones is a choice of the chip.
            tiny = self.exact.abs() < self.form.smallest_normal
            error[tiny & (error.abs() <= self.form.smallest_normal)] = 0
        return error.div_(self.unit).float()

    @cached_property
    def value(self) -> torch.Tensor:
        """The exact values in units of their last place; 0 for what is not finite, or too large for the format."""
        value = (self.exact / self.unit).float().nan_to_num_(0, 0, 0)
        # Infinity is right there, and tells nothing; numbers that large are ordinary in short formats only.
        if self.form.overflow < _LARGEST_SQUARED and _largest(self.exact) >= self.form.overflow:
            value.masked_fill_(self.exact.abs() >= self.form.overflow, 0)
        return value

    def leveled(self, noise: torch.Tensor) -> torch.Tensor:
        """Noise (in units, float32) as the limits count it."""
        self.scatter = noise.clone()
        noise = noise.add_(self.floor) if not self.direct else noise.sub_(self.free).clamp_(min=0)
        if self.kind.absolute:
            # In place of the libraries' own errors; the rounding of the result comes on top of either.
            beyond = (self.kind.absolute / self.unit).float().sub_(self.base - BASE).clamp_(min=0)
            noise += beyond.div_(self.multiple)
        return noise

    def check_without_noise(self) -> BoundCheck:
        """The limits with the noise of one rounding, the least that any arithmetic has."""
        bound = self.base + self.multiple * self.floor
        if self.worst > bound:
            return BoundCheck("not explained by one rounding", self.worst / bound, math.nan)
        expected = self.spread + (self.rms_noise * self.floor) ** 2
        rms = float(self.error.norm()) / math.sqrt(max(1, self.error.numel()) * expected)
        return self._average(rms, ReferenceNeeds(), self.worst / bound, None)

    def needs(self, noise: torch.Tensor) -> ReferenceNeeds:
        """What the reference needs under this noise (in units)."""
        error = self.reference_error
        multiple = 0.0
        if error.numel() and not self.direct:
            multiple = float(error.abs().sub_(BASE).div_(noise).amax())
        if self.form.bits > 16:
            multiple = min(multiple, MULTIPLE * REFERENCE_CAP)
        return ReferenceNeeds(max(multiple, 0.0), self.reference_rms(noise))

    def reference_rms(self, noise: torch.Tensor) -> float:
        """The RMS of the reference's errors under this noise."""
        return self._rms(self.reference_error, noise)

    def reference_excess(self) -> torch.Tensor:
        """By how much the reference's own errors exceed one rounding, in units."""
        return self.reference_error.abs().sub_(self.base).clamp_(min=0)

    def reference_noise(self, columns: int) -> torch.Tensor:
        """Noise as the reference's own errors show it row by row, beyond what one rounding explains."""
        noise = self.by_rows(self.reference_excess(), columns)
        self.scatter = noise.clone()
        return noise.mul_(REFERENCE_DEVIATIONS / self.multiple).add_(self.floor)

    def by_rows(self, noise: torch.Tensor, columns: int) -> torch.Tensor:
        """The RMS of a row's noise for each of its elements: sums and their roundings are of one size along a row."""
        if columns < 2 or noise.numel() % columns:
            return noise.clone()
        unit = self.unit.view(-1, columns)
        sizes = noise.view(-1, columns).mul(unit)
        rms = torch.linalg.vector_norm(sizes, dim=1, keepdim=True).div_(math.sqrt(columns))
        return torch.div(rms, unit, out=sizes).reshape(-1).to(noise.dtype)

    @cached_property
    def reference_error(self) -> torch.Tensor:
        """Where the reference itself overflowed, it excuses nothing but the same."""
        error = self._in_units(self.own)
        # A sum is far cheaper to look at than each element.
        return error if math.isfinite(float(self.own.sum())) else torch.where(self.own.isfinite(), error, 0.0)

    def check(
        self, noise: torch.Tensor, needs: ReferenceNeeds, strictness: float = 1.0, *, brief: bool = False
    ) -> BoundCheck:
        """Hold the errors against the limits; `strictness` narrows the first. `brief`: of a failure nobody asks for more."""
        multiple = max(self.multiple / strictness, REFERENCE_SHARE * needs.multiple)
        share = self.error.abs().div_(noise.mul(multiple).add_(self.base))
        worst = _largest(share)
        if math.isnan(worst):
            # Where t is zero its unit is so small that error and noise overflow float32: infinity over infinity.
            limit = noise.double().mul_(multiple).add_(self.base).mul_(self.unit)
            again = (self.result - self.exact).abs_().div_(limit).nan_to_num_(math.inf, math.inf).float()
            share = torch.where(share.isnan(), again, share)
            worst = float(share.amax())
        if brief and worst > 1:
            index = int(share.argmax())
            if self.result[index] != self.own[index]:
                return BoundCheck("an element is off", worst, math.nan)
        if worst > 1:
            # Whatever the reference gives bit for bit is right by definition (odd roundings at a jump, say).
            share[(self.result == self.own) | (self.result.isnan() & self.own.isnan())] = 0
            worst = float(share.amax())
        if worst > 1:
            return BoundCheck(self._worst_reason(share, worst), worst, math.nan, bool(self._lean))
        return self._average(self._rms(self.error, noise), needs, worst, noise)

    def _average(
        self, rms: float, needs: ReferenceNeeds, worst: float, noise: torch.Tensor | None
    ) -> BoundCheck:
        """The limits for all elements together: how large errors are on average, and whether they lean."""
        chance = 1 + 4 / math.sqrt(2 * max(1, self.error.numel()))
        share = rms / (max(RMS_LIMIT, RMS_REFERENCE * needs.rms) * chance)
        if share > 1:
            reason = f"errors are {share:.3g} times as large on average as rounding explains"
            return BoundCheck(reason, worst, share, bool(self._lean))
        reason = (
            self._lean or common_factor(self, noise, self.kind.columns, self.moves) or one_lane(self, noise)
        )
        if not reason and (odd := stands_out(self)):
            return BoundCheck(odd, worst, share)
        return BoundCheck(reason, worst, share, bool(reason))

    @property
    def _lean(self) -> str:
        """What no arithmetic that is only less precise does."""
        return self._cut or pure_factor(self)

    @cached_property
    def _cut(self) -> str:
        return truncation(self, self.kind.columns)

    def _rms(self, error: torch.Tensor, noise: torch.Tensor) -> float:
        if not error.numel():
            return 0.0
        if _largest(noise) <= _LARGEST_SQUARED / self.rms_noise:
            expected = noise.square().mul_(self.rms_noise**2).add_(self.spread)
            return math.sqrt(float(torch.div(error, expected, out=expected) @ error) / error.numel())
        # Where noise is that far above the unit, its own size says the same.
        expected = noise.mul(self.rms_noise).clamp_(max=_LARGEST_SQUARED).square_().add_(self.spread).sqrt_()
        expected = torch.maximum(expected, noise * self.rms_noise)
        return float(error.div(expected).norm()) / math.sqrt(error.numel())

    def _worst_reason(self, share: torch.Tensor, worst: float) -> str:
        index = int(share.argmax())
        count = int((share > 1).sum())
        got, exact = float(self.result[index]), float(self.exact[index])
        many = "1 element is" if count == 1 else f"{count} of {share.numel()} elements are"
        times = (
            "not explained by any rounding" if math.isinf(worst) else f"up to {_brief(worst)} times the bound"
        )
        return f"{many} off, {times}: element {index} is {got:.9g}, exact {exact:.9g}"


def _brief(number: float) -> str:
    """With an exponent as tables write it: 1.41e+8."""
    mantissa, e, exponent = f"{number:.3g}".partition("e")
    return f"{mantissa}e{int(exponent):+d}" if e else mantissa


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
        habits.append(excess[excess > LEAN_LEAST])
        squares += (excess * sample.unit).square_()
    variation, _ = estimate(squares.div_(len(samples)), len(samples), errors.exact, columns, 1.0)
    in_units = (variation / errors.unit).float()
    beyond = torch.cat(habits)
    habitual = beyond.numel() >= REFERENCE_HABIT * len(samples) * max(1, squares.numel())
    # A wide format computed element by element has no inner roundings of that size, but for functions that level off.
    if habitual and not (errors.direct and errors.form.bits > 16 and not errors.kind.absolute):
        in_units = in_units.clamp(min=min(float(beyond.median()), HABIT_UNITS))
    noise = noise + in_units * (REFERENCE_DEVIATIONS / errors.multiple)
    return noise, ReferenceNeeds(0.0, max(sample.reference_rms(noise) for sample in samples))


def _largest(values: torch.Tensor) -> float:
    if not values.numel():
        return 0.0
    low, high = values.aminmax()
    return max(-float(low), float(high))


def columns_of(exact: torch.Tensor) -> int:
    """The length of a row of the flat parts of a result."""
    return exact.shape[-1] * (2 if exact.is_complex() else 1) if exact.dim() else 1


def measured_noise(
    reruns: Reruns, errors: Errors, index: int, columns: int, least: torch.Tensor | None = None
) -> tuple[torch.Tensor, NoiseLevel | None]:
    """The noise of the reruns made so far, in units of the last place, and what of it is worth keeping.

    `least`: a variance that is known besides.
    """
    variance = reruns.variance(index)
    if variance is None or variance.numel() != errors.exact.numel():
        return errors.leveled(torch.zeros_like(errors.error)), None
    scale = DOUBLE_ROUNDING / ROUNDING if errors.form.dtype == torch.float64 else 1.0
    errors.moves = [(change / errors.unit).float().mul_(scale) for change in reruns.changes(index)]
    noise, level = estimate(variance, reruns.count, errors.exact, columns, scale)
    if least is not None:
        noise = torch.maximum(noise, least.sqrt().mul_(scale))
    return errors.leveled(noise.div_(errors.unit).float()), level


def errors_of_variants(
    variants: Sequence[tuple[list[Any], list[Any]]], errors: Errors, index: int
) -> list[Errors]:
    """The reference's errors on inputs of other last bits, from its (own, truth) there."""
    samples = []
    for own, exact in variants:
        parts, expected = real_parts(own[index]), real_parts(exact[index])
        if parts.numel() == expected.numel() == errors.exact.numel():
            samples.append(Errors(parts, parts, expected, errors.form, errors.kind))
    return samples
