"""Errors that have a direction: a common factor, one row of another scale, truncation.

Rounding to nearest leans nowhere. The share of the value that the error is, by weighted least squares over many elements,
shows a wrong factor long before any single element leaves its bound. Elements that were multiplied by one rounded number
(the scale of a normalised row, a rounded reciprocal) are no independent witnesses, so standard errors are taken over
rows and columns, and what one rounding, or the reference itself, does is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from op_tools.verdict.bounds import Errors

# A common factor of so many roundings is no fault in a short format; in a wide one see `bounds.Kind.leaning`.
SHORT_ROUNDINGS = 1.01
# One row may lean by more: its scale is one number.
ROW_ROUNDINGS = 2.0
# Standard errors beyond that: for the whole, and for the worst of many rows.
FACTOR_DEVIATIONS, ROW_DEVIATIONS = 6.0, 9.0
# Noise that a whole row shares (through its sum, its scale) does not average out: so many times its size.
ROW_SHARED = 2.5
# The reference's own share excuses this many times itself, and so does what reruns with moved inputs do (RMS).
REFERENCE_TIMES, MOVED_TIMES = 2.0, 1.5
# In a short format a factor beyond that of two rounded scalars is one whatever the reference does, if it is all there is:
# without it a rounding or two remain, in all but a few elements, beside so much of their noise.
PURE_ROUNDINGS, PURE_LEFT, PURE_RMS, PURE_EXCEPTIONS, PURE_NOISE = 2.05, 1.02, 0.5, 0.02, 4.0
# It has to show in so many elements, and in this part of all that are not zero.
PURE_ELEMENTS, PURE_SHOWN = 64, 0.25
# One position out of so many, as threads and vector lanes have them: its errors are this many times those elsewhere, by
# the median, and no smaller than so many units; each lane has this many elements at least.
LANES, LANE_TIMES, LANE_UNITS, LANE_ELEMENTS = 32, 5.0, 3.0, 8
LANE_SAMPLE = 128
# Where the reference's errors at that position are larger than elsewhere too, by so much, the data are the cause.
LANE_EXCUSED = 1.5
# Rows shorter than this say nothing of a factor. Nor do results of fewer elements; up to LEAST_ELEMENTS of them have standard
# errors of their own, whose tails are those of Student's distribution: as far out as so many standard deviations.
LEAST_ELEMENTS, FEWEST_ELEMENTS, FEW_DEVIATIONS = 16, 4, 4.5
# A row is judged where its values are far above the noise: by the root of this, for the average element.
SIGNAL = 100.0
# How much the noise of an element counts against its weight.
_NOISE_WEIGHT = 2.0

# Lean: among errors above a fiftieth of a unit, the mean sign beside the value's. Truncation gives -1, rounding 0.
LEAN_LEAST = 0.02
LEAN_SAMPLES = 64
LEAN_SIGN = 0.6
LEAN_DEVIATIONS = 6.0
# Truncation is half a unit low on average; small one-sided errors of a good approximation are no fault.
LEAN_SIZE = 0.3
# Truncation is never off by more than a unit, by 0.58 in the RMS. Larger errors are those of sums, and sums share them.
LEAN_RMS = 0.75
# What truncation of an otherwise exact result leaves: no error outward, none of a unit or more inward.
TRUNCATED = (-1.02, 0.02)
TRUNCATED_EXCEPTIONS = 0.005
# So many rows have to agree where rows have scales of their own.
LEAN_ROWS = 8
# A quotient by a scalar may be a product with its rounded reciprocal: without the common factor, rounding to nearest
# remains. The factor is a fit: so many units in the last place, over the root of the number of elements, are its error.
SCALED_ROUNDING = 1.2


@dataclass(frozen=True, slots=True)
class Shares:
    """The error as a share of the value: of all elements, and of each row; with standard errors."""

    whole: float
    whole_error: float  # elements of a row, or of a column, taken as one witness
    rows: torch.Tensor | None  # NaN where a row is nothing but noise
    row_errors: torch.Tensor | None  # how far it may be off by chance


def witness_length(shape: torch.Size) -> int:
    """How many neighbouring elements make a row long enough to be judged: the last dimension, or a few of them."""
    length = 1
    for size in reversed(shape):
        length *= size
        if length >= LEAST_ELEMENTS:
            break
    return length


def shares(
    error: torch.Tensor,
    value: torch.Tensor,
    noise: torch.Tensor | None,
    columns: int,
    *,
    rows_share: bool = True,
) -> Shares | None:
    """Of flat float32 errors, values and noise in units of the last place. `rows_share`: a row may share its noise."""
    if error.numel() < FEWEST_ELEMENTS:
        return None
    weight = None if noise is None else noise.mul(_NOISE_WEIGHT).square_().add_(1 / 12).reciprocal_()
    weighted = value if weight is None else value * weight
    power = float(weighted @ value)
    if not (0 < power < math.inf):
        return None
    top, bottom = weighted * error, weighted * value
    whole = float(top.sum()) / power
    rest = torch.sub(top, bottom, alpha=whole)
    squares = [float(rest @ rest)]
    rows = row_errors = None
    if columns >= LEAST_ELEMENTS and error.numel() >= 2 * columns and error.numel() % columns == 0:
        table = rest.view(-1, columns)
        squares += [float(table.sum(1).square().sum()), float(table.sum(0).square().sum())]
        powers = bottom.view(-1, columns).sum(1)
        rows = (top.view(-1, columns).sum(1) / powers).masked_fill_(powers < SIGNAL * columns, math.nan)
        left = top.view(-1, columns).addcmul_(bottom.view(-1, columns), rows.unsqueeze(1), value=-1)
        row_errors = torch.linalg.vector_norm(left, dim=1).mul_(ROW_DEVIATIONS) / powers
        if rows_share and noise is not None and weight is not None:
            together = (weight * noise).mul_(noise).view(-1, columns).sum(1)
            row_errors += together.div_(powers).sqrt_().mul_(ROW_SHARED)
    return Shares(whole, math.sqrt(max(squares)) / power, rows, row_errors)


def common_factor(
    errors: Errors, noise: torch.Tensor | None, columns: int, moves: Sequence[torch.Tensor] = ()
) -> str:
    """What is wrong if results, or a row of them, are off by a factor; empty if nothing is.

    `moves` are changes (in units) that roundings of the inputs make: where one of them scales a row, so may the device.
    """
    found = shares(errors.error, errors.value, noise, columns, rows_share=not errors.direct)
    if found is None:
        return ""
    rounding = errors.form.roundoff * (errors.kind.leaning if errors.form.bits > 16 else SHORT_ROUNDINGS)
    whole = abs(found.whole) - rounding - _deviations(errors.error.numel()) * found.whole_error
    rows = None
    if found.rows is not None and found.row_errors is not None:
        rows = found.rows.abs() - found.row_errors - rounding * ROW_ROUNDINGS
        rows = rows.nan_to_num_(-1.0, -1.0) if bool((rows > 0).any()) else None
    if whole <= 0 and rows is None:
        return ""
    # Something leans. What the reference's own errors, and roundings of the inputs, do may the device do as well.
    # Without noise to weigh them by, elements next to zero would decide: then nothing is excused yet.
    if noise is not None:
        own = shares(errors.reference_error, errors.value, noise, columns)
        moved = [shares(move, errors.value, noise, columns) for move in moves]
        for times, samples in ((REFERENCE_TIMES, [own]), (MOVED_TIMES, moved)):
            known = [sample for sample in samples if sample is not None]
            if not known:
                continue
            whole -= times * math.sqrt(sum(sample.whole**2 for sample in known) / len(known))
            by_rows = [sample.rows.nan_to_num(0, 0, 0) for sample in known if sample.rows is not None]
            if rows is not None and by_rows:
                squares = torch.stack(by_rows).square_().mean(0)
                rows = rows - (squares.sqrt() + squares.mean().sqrt()).mul_(times)
    if whole > 0:
        return f"all results are off by a common factor of 1 {found.whole:+.3g}"
    if rows is None or found.rows is None or float(rows.amax()) <= 0:
        return ""
    worst = int(rows.argmax())
    return f"row {worst} is off by a common factor of 1 {float(found.rows[worst]):+.3g}"


def pure_factor(errors: Errors) -> str:
    """What is wrong if results of a short format are rounded once, of values that are off by a factor; empty if not."""
    count = errors.error.numel()
    if errors.form.bits > 16 or errors.worst < PURE_ROUNDINGS / 2 or count < PURE_ELEMENTS:
        return ""
    value, error, scatter = errors.value, errors.error, errors.scatter
    weighted = value if scatter is None else value / scatter.square().add_(1 / 12)
    power = float(weighted @ value)
    slope = float(weighted @ error) / power if 0 < power < math.inf else 0.0
    if not abs(slope) > PURE_ROUNDINGS * errors.form.roundoff:
        return ""
    # Only elements where it is more than a rounding and their noise can tell.
    shown = value.abs() * abs(slope) > (1.0 if scatter is None else scatter * PURE_NOISE + 1.0)
    rest = (error - value * slope).abs_()
    if scatter is not None:
        rest -= scatter * PURE_NOISE
    rest = rest[shown].clamp_(min=0)
    count = rest.numel()
    if count < PURE_ELEMENTS or count < PURE_SHOWN * int((value != 0).sum()):
        return ""
    rms = float(rest.clamp(max=PURE_LEFT).norm()) / math.sqrt(count)
    if float((rest > PURE_LEFT).float().mean()) > PURE_EXCEPTIONS or rms > PURE_RMS:
        return ""
    return f"all results are off by a common factor of 1 {slope:+.3g}, and by roundings without it"


def _deviations(count: int) -> float:
    """How many standard errors are no chance; with few elements, of which the standard error is an estimate, more."""
    if count >= LEAST_ELEMENTS:
        return FACTOR_DEVIATIONS
    freedom = count - 1
    return math.sqrt(freedom * math.expm1(FEW_DEVIATIONS**2 / freedom))


def one_lane(errors: Errors, noise: torch.Tensor | None) -> str:
    """What is wrong if errors are large at one position of every 32 and small elsewhere; empty if they are not."""
    count = errors.error.numel() // LANES
    if count < LANE_ELEMENTS or errors.worst < LANE_UNITS:
        return ""
    if errors.form.bits <= 16 and errors.scatter is not None:
        # The noise by itself: a reference that rounds to halves inside excuses nothing here.
        noise = errors.scatter
    scale = None if noise is None else noise.square().add_(1 / 12).sqrt_()
    typical = _by_lane(errors.error, scale, count)
    lane = int(typical.argmax())
    if float(typical[lane]) <= LANE_TIMES * float(typical.median()):
        return ""
    # More than a few as large are columns that carry all the errors: the imaginary parts of sums whose real parts are exact, say.
    if int((typical * LANE_TIMES > typical[lane]).sum()) > LANES // 8:
        return ""
    if float(_by_lane(errors.error, None, count)[lane]) < LANE_UNITS:
        return ""
    own = torch.stack([_by_lane(s.reference_error, scale, count) for s in errors.samples or [errors]]).mean(0)
    if float(own[lane]) > LANE_EXCUSED * float(own.median()) > 0:
        return ""
    return f"elements {lane}, {lane + LANES}, {lane + 2 * LANES} and so on are off where their neighbours are not"


def _by_lane(error: torch.Tensor, scale: torch.Tensor | None, count: int) -> torch.Tensor:
    # A sample of each lane is enough for its median, and medians are slow.
    step = max(1, count // LANE_SAMPLE)
    size = error[: count * LANES].view(count, LANES)[::step].abs()
    if scale is not None:
        size = size / scale[: count * LANES].view(count, LANES)[::step]
    return size.nan_to_num(0, 0, 0).median(0).values


# --- truncation ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Side:
    mean: float
    deviation: float
    size: float


def truncation(errors: Errors, columns: int) -> str:
    """What is wrong if errors lie on the inner side of the values, half a unit of it on average; empty if they do not."""
    side = _side(errors.error, errors.exact)
    if side is None or side.mean > 0 or abs(side.size) <= LEAN_SIZE:
        return ""
    own = _side(errors.reference_error, errors.exact)
    if own is not None and abs(side.deviation) <= 2 * abs(own.deviation):
        return ""
    outward = _outward(errors.error, errors.exact)
    cut = _is_cut(outward) or (not errors.direct and _rows_agree(outward, columns))
    if not cut or _is_scaled(errors):
        return ""
    return f"errors lean towards zero ({abs(side.mean):.0%} more on that side), as truncation does"


def _side(error: torch.Tensor, exact: torch.Tensor) -> _Side | None:
    """The mean sign of errors beside their values', how surprising it is, and their mean; None if unremarkable."""
    if error.numel() < LEAN_SAMPLES:
        return None
    outward = _outward(error, exact)
    # A mean of LEAN_SIZE over errors of at most 2 leaves a sum of at least this part of their squares.
    if abs(float(outward.sum())) < LEAN_SIZE / 4 * float(outward @ outward):
        return None
    used = outward[outward.abs() > LEAN_LEAST]
    count = used.numel()
    if count < LEAN_SAMPLES:
        return None
    mean = float(used.sign().mean())
    deviation = mean * math.sqrt(count)
    sums_share_them = float(used.norm()) > LEAN_RMS * math.sqrt(count)
    if abs(mean) <= LEAN_SIGN or abs(deviation) <= LEAN_DEVIATIONS or sums_share_them:
        return None
    return _Side(mean, deviation, float(used.mean()))


def _outward(error: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return exact.float().sign_().mul_(error).nan_to_num_(0, 2, -2).clamp_(-2, 2)


def _is_cut(outward: torch.Tensor) -> bool:
    """Nothing beyond the value, nothing a unit short of it: exact results that were cut off."""
    low, high = TRUNCATED
    outside = (outward < low) | (outward > high)
    return float(outside.float().mean()) <= TRUNCATED_EXCEPTIONS


def _rows_agree(outward: torch.Tensor, columns: int) -> bool:
    """Each row by itself leans inward. The elements of one row may share one rounded scale, and lean with it by chance."""
    rows = outward.numel() // max(columns, 1)
    if columns < 2 or rows < LEAN_ROWS or outward.numel() % columns:
        return False
    means = outward.view(rows, columns).mean(1)
    deviation = float(means.mean()) * math.sqrt(rows) / max(float(means.std()), 1e-6)
    return deviation < -LEAN_DEVIATIONS


def _is_scaled(errors: Errors) -> bool:
    """Rounded to nearest, but of a value that is off by one rounding throughout: a product with a rounded reciprocal."""
    error = errors.error.double() * errors.unit
    power = float(errors.exact @ errors.exact)
    slope = float(error @ errors.exact) / power if power > 0 else 0.0
    if abs(slope) > errors.form.roundoff:
        return False
    rest = errors.error - (errors.exact * slope / errors.unit).float()
    return float(rest.abs().amax()) <= 0.502 + SCALED_ROUNDING / math.sqrt(rest.numel())
