"""Models of arithmetic with less precision than the dtype promises, and which of them explains an error.

A chip may multiply float32 matrices in TF32 or add half values in half precision, by choice or by design. Such a
result is not right, but it is not broken either, and saying which arithmetic it looks like is what helps. A
model explains an error only if the error has its size everywhere, no outliers, no bias and no proportion to
the result: what is left are roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from op_tools.categories import Category
from op_tools.reference.perturbation import ROUNDING
from op_tools.verdict.bounds import Errors, growth
from op_tools.verdict.rounding import Format, format_of, unit_in_last_place
from op_tools.verdict.systematic import common_factor

# Uniform roundings up to r have RMS r / sqrt 3 at the bottom of a binade, half of that at its top.
_UNIFORM = 3**-0.5
# The RMS error is at most this multiple of the model's: roundings toward zero double it.
MOST = 2.5
# The largest error beside their RMS: a million normal errors reach 5, row scales widen that. Up to this many roundings
# of the model are never an outlier.
OUTLIER, FEW_ROUNDINGS = 12.0, 5.0
# A model hurts in more than one element: so many elements are off by more than one rounding and so many times the noise.
# A single wrong element among thousands is a fault; so is that of a tiny result, unless TINY_ROUNDINGS more do it.
TINY_ROUNDINGS = 2.0
# Rounded inputs hurt far more than float32 does: this part of its elements at least.
FEWEST_AFFECTED, BEYOND_NOISE, TINY_RESULT, LEAST_AFFECTED = 3, 5.0, 64, 0.05
# The error of rounded inputs is the computed one, but for what is rounded further inside. Inputs that are cut off make all
# results smaller, as a wrong scale does: that needs more.
RECOGNISED, RECOGNISED_CUT = 0.5, 0.9
# ... and of its size: with so much of it. A common factor of a few units is like what inputs that are cut off do, but small.
LEAST_OF_COMPUTED = 0.25
# Of an error matrix of independent roundings, the largest singular value squared is at most so many times its expectation.
STRUCTURED, LEAST_SIDE = 3.0, 8
# Adding L numbers one after the other in half precision: errors grow to 0.41 sqrt(L) roundings (normal terms). A few
# roundings inside an operator that adds nothing stay below SEVERAL.
SEQUENTIAL, SEVERAL = 0.6, 1.5
# Where all elements are sums of the same number of terms, errors in one stretch of no more than this part of them, and by chance
# with no more than this probability, are those of a tile.
TILE_PART, TILE_CHANCE = 0.5, 1e-6
# So many roundings may be all there is, in so many elements; in fewer of them less.
FEW_STEPS, SEVERAL_ELEMENTS, ONE_STEP = 3.0, 8, 1.5
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
    inputs: torch.dtype  # the shortest floating type among the inputs
    columns: int
    running: bool  # sums of sums: errors along a row contain all earlier ones
    even: bool  # every element sums as many terms as any other
    errors: Errors
    # The exact result of inputs of so many bits, rounded to nearest or cut off.
    shortened: Callable[[int, bool], torch.Tensor | None]
    # The noise where sums inside of fused operators are rounded too; None where nothing is fused.
    inside: Callable[[], torch.Tensor | None]


def explanation(evidence: Evidence) -> str | None:
    """Which arithmetic the error looks like; None where none explains it."""
    error = evidence.error
    if not error.numel() or not bool(torch.isfinite(error).all()):
        return None
    if evidence.form.dtype == torch.float32:
        if not _widespread(evidence):
            return None
        return _carried(evidence) or _rounded_inputs(evidence) or _half_sums(evidence)
    return _half_inside(evidence, evidence.form)


def _affected(evidence: Evidence) -> torch.Tensor:
    """Where elements are off by more than one rounding and the noise."""
    one_rounding = unit_in_last_place(evidence.exact, evidence.form) * 0.5
    noise = (evidence.noise + evidence.exact.abs() * ROUNDING) * growth(evidence.length)
    return evidence.error.abs() > one_rounding + noise * BEYOND_NOISE


def _is_tile(evidence: Evidence) -> bool:
    """Whether one stretch of a plain reduction is off, and nothing else of what the same arithmetic made."""
    if not evidence.even:
        return False
    affected = _affected(evidence)[evidence.exact != 0].nonzero().view(-1)
    count, total = affected.numel(), int((evidence.exact != 0).sum())
    if count < FEWEST_AFFECTED or total < TINY_RESULT:
        return False
    part = (int(affected[-1]) - int(affected[0]) + 1) / total
    return part <= TILE_PART and count * part ** (count - 1) < TILE_CHANCE


def _widespread(evidence: Evidence) -> bool:
    affected, count = int(_affected(evidence).sum()), evidence.error.numel()
    if count < TINY_RESULT:
        # Shorter arithmetic touches every element; a single one that is off among good ones is a fault.
        return affected >= max(1, count / 2)
    return affected >= max(FEWEST_AFFECTED, LEAST_AFFECTED * count)


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
    for name, bits in (("TF32", 11), ("bfloat16 inputs", 8)):
        for nearest in (True, False):
            other = evidence.shortened(bits, nearest)
            least = RECOGNISED if nearest else RECOGNISED_CUT
            if other is None or not _recognised(evidence.error, other - evidence.exact, least):
                continue
            scale = evidence.noise * (2.0**-bits / ROUNDING * _UNIFORM)
            rest = evidence.error if nearest else evidence.error - (other - evidence.exact)
            share = rest / scale.clamp_(min=1e-300)
            rms = float(share.norm()) / math.sqrt(share.numel())
            if rms <= MOST and not _has_outliers(share, rms):
                return f"behaves like {name}"
    return None


def _recognised(error: torch.Tensor, computed: torch.Tensor, least: float) -> bool:
    norms = float(error.norm() * computed.norm())
    if not (0 < norms < math.inf):
        return False
    product = float(error @ computed)
    alike = product / norms > min(least + 2 / math.sqrt(error.numel()), 0.95)
    return alike and product > LEAST_OF_COMPUTED * float(computed @ computed)


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
    # A rounding or two may show in a few elements only; whatever is larger is everywhere.
    affected = int(_affected(evidence).sum())
    most_of_few = FEW_STEPS if affected >= SEVERAL_ELEMENTS else ONE_STEP
    few = steps.numel() >= TINY_RESULT and float(steps.abs().max()) <= most_of_few
    if not few and (not _widespread(evidence) or _is_tile(evidence)):
        return None
    # Running sums carry their errors on: along a row these lean with the first of them.
    if not evidence.running and (
        _follows(evidence, magnitude, roundoff) or (not few and _is_product(evidence, steps))
    ):
        return None
    rms = float(steps.norm()) / math.sqrt(steps.numel())
    most = max(SEQUENTIAL * math.sqrt(evidence.length), SEVERAL)
    tiny = TINY_ROUNDINGS * (most if form is not evidence.form else 1.0)
    if rms > most:
        return None
    if _has_outliers(steps, rms, tiny):
        # A sum that all elements of a row share moves them by its own rounding, also those that nearly cancel.
        of_many = steps.numel() >= TINY_RESULT and _widespread(evidence)
        inside = evidence.inside() if of_many else None
        if inside is None or inside.numel() != steps.numel():
            return None
        steps = evidence.error / (torch.maximum(magnitude, inside / ROUNDING) * roundoff)
        if _has_outliers(steps, float(steps.norm()) / math.sqrt(steps.numel()), tiny):
            return None
    if evidence.length >= 2:
        return f"behaves like accumulation in {_name(form.dtype)}"
    return f"behaves like {_name(form.dtype)} inside"


def _follows(evidence: Evidence, magnitude: torch.Tensor, roundoff: float) -> bool:
    """Whether errors of this size follow the values, or those of a row: a wrong scale, a wrong constant."""
    errors = evidence.errors
    in_units = (magnitude * roundoff / errors.unit).float()
    moves = [move * (roundoff / ROUNDING) for move in errors.moves]
    return bool(common_factor(errors, in_units, errors.kind.columns, moves))


def _is_product(evidence: Evidence, steps: torch.Tensor) -> bool:
    """Whether the errors of a product of matrices are themselves one of a column and a row: a term that was lost."""
    rows = steps.numel() // max(evidence.columns, 1)
    if evidence.category != "matmul" or min(rows, evidence.columns) < LEAST_SIDE:
        return False
    table = steps.view(rows, evidence.columns)
    right = table[int(table.square().sum(1).argmax())].clone()
    for _ in range(8):
        left = table @ right
        right = table.t() @ (left / left.norm().clamp(min=1e-300))
    expected = (math.sqrt(rows) + math.sqrt(evidence.columns)) ** 2 / table.numel()
    return float(right.norm()) ** 2 > STRUCTURED * expected * float(table.square().sum())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
