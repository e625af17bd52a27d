"""Functions of an input that draw a mask or a slope: which values they keep, what they make of them, and at what rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from op_tools.verdict.distribution.discrete_laws import flags
from op_tools.verdict.distribution.draws import NotJudged, flat
from op_tools.verdict.distribution.laws import uniform_between
from op_tools.verdict.rounding import Format, format_of, unit_in_last_place

if TYPE_CHECKING:
    from op_tools.verdict.distribution.laws import Law, Named

# A kept value is x * (1 / (1 - p)), in one or two roundings more than x / (1 - p).
KEPT_UNITS = 2.5
# A value of alpha dropout is a * x + b, in up to four roundings of terms of that size.
SHIFTED_UNITS = 8.0
# Dependence within masks is looked at on so many elements: training draws many of them.
MASK_SAMPLES = 1 << 14
# The value that alpha dropout puts in for what it drops: -scale * alpha of SELU.
DROPPED = -1.7580993408473766


def _source(named: Named, results: Sequence[Any]) -> tuple[Tensor, Tensor, float, Format]:
    source, result = named.get("self"), results[0]
    if not isinstance(source, Tensor) or not isinstance(result, Tensor) or source.shape != result.shape:
        raise NotJudged
    form = format_of(source.dtype)
    if form is None or source.is_complex() or not source.numel():
        raise NotJudged
    return source, result, float(named.get("p", 0.5)), form


def dropout(named: Named, results: Sequence[Any]) -> Law:
    source, result, p, form = _source(named, results)
    before, after = flat(source), flat(result)
    if p >= 1:
        return "" if not bool(after.any()) else "values were kept though p is 1"
    kept = after != 0  # NaN too
    if wrong := _wrongly_kept(before, after, kept, 1 - p, form):
        return wrong
    # A zero, or what becomes one by scaling, tells nothing about the draw.
    telling = before.abs() >= form.smallest_normal
    everything = bool(telling.all())
    mask = results[1] if len(results) > 1 else None
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == result.shape:
        drawn = flat(mask)
        if bool((kept & ~drawn).any()) or bool((telling & drawn & ~kept).any()):
            return "the mask and the values disagree"
        return flags(drawn, 1 - p, most=MASK_SAMPLES, parameters=(before,) if everything else ())
    drawn = kept if everything else kept[telling]
    if not drawn.numel():
        return ""
    return flags(drawn, 1 - p, most=MASK_SAMPLES, parameters=(before if everything else before[telling],))


def _wrongly_kept(before: Tensor, after: Tensor, kept: Tensor, share: float, form: Format) -> str:
    """Kept values other than x / share. Most are what one multiplication gives: the others are looked at closely."""
    quick = torch.where(kept, before * (1 / share), torch.zeros_like(before))
    doubtful = ((after != quick) & kept).nonzero().view(-1)
    if not doubtful.numel():
        return ""
    before, after = before[doubtful].double(), after[doubtful].double()
    scaled = before / share
    close = (after - scaled).abs() <= unit_in_last_place(scaled, form) * KEPT_UNITS
    overflow = (scaled.abs() >= form.largest) & (after.isinf() | close)
    same = (before.isnan() & after.isnan()) | (before.isinf() & (after == before)) | overflow
    # What is dropped by multiplication with 0 is NaN where it was infinite.
    same |= before.isinf() & after.isnan()
    wrong = int((~close & ~same).sum())
    return f"{wrong} kept values are not x / (1 - p)" if wrong else ""


def channel_dropout(named: Named, results: Sequence[Any]) -> Law:
    """Whole channels are kept or dropped."""
    source, result, p, form = _source(named, results)
    if source.dim() < 2 or p >= 1:
        raise NotJudged
    # dropout2d takes three dimensions for (batch, channel, length).
    batched = source.dim() > {"1d": 2, "2d": 2, "3d": 4}.get(str(named.get("kind")), 1)
    rows = (source.shape[0] * source.shape[1], -1) if batched else (source.shape[0], -1)
    before, after = source.reshape(rows), result.reshape(rows)
    telling, kept = (before != 0).any(1), (after != 0).any(1)
    partly = kept & ((after == 0) & (before.abs() >= form.smallest_normal)).any(1)
    if bool(partly.any()):
        return f"{int(partly.sum())} channels were dropped in part"
    of_kept = (flat(before[kept]), flat(after[kept]))
    if wrong := _wrongly_kept(*of_kept, torch.ones_like(of_kept[0], dtype=torch.bool), 1 - p, form):
        return wrong
    if not bool(telling.any()):
        return ""
    return flags(kept[telling], 1 - p)


def alpha_dropout(named: Named, results: Sequence[Any]) -> Law:
    """Keeps mean and variance: a * x + b where kept, a constant where dropped."""
    source, result, p, form = _source(named, results)
    if p >= 1:
        raise NotJudged
    before, after = flat(source).double(), flat(result).double()
    a = 1 / math.sqrt((1 - p) * (1 + p * DROPPED * DROPPED))
    b = -a * p * DROPPED
    as_kept, as_dropped = a * before + b, a * DROPPED + b
    slack = SHIFTED_UNITS * form.roundoff * (a * before.abs() + abs(b) + a * abs(DROPPED))
    kept, dropped = (after - as_kept).abs() <= slack, (after - as_dropped).abs() <= slack
    wrong = int((~(kept | dropped) & before.isfinite()).sum())
    if wrong:
        return f"{wrong} values are neither the kept nor the dropped ones of alpha dropout"
    telling = kept != dropped
    if not bool(telling.any()):
        return ""
    return flags(kept[telling], 1 - p, most=MASK_SAMPLES)


def leaky(named: Named, results: Sequence[Any]) -> Law:
    """rrelu in training: negative values times a slope between lower and upper."""
    source, result, _, form = _source(named, results)
    lower, upper = float(named.get("lower", 1 / 8)), float(named.get("upper", 1 / 3))
    before, after = flat(source).double(), flat(result).double()
    positive = before >= 0
    if bool((after[positive] != before[positive]).any()):
        return "values above 0 were changed"
    telling = ~positive & (before.abs() > form.smallest_normal / form.roundoff) & before.isfinite()
    slopes = after[telling] / before[telling]
    if not slopes.numel():
        return ""
    if bool(slopes.isnan().any()):
        return f"{int(slopes.isnan().sum())} values are NaN"
    slack = 4 * form.roundoff
    least, most = map(float, slopes.aminmax())
    if least < lower * (1 - slack) or most > upper * (1 + slack):
        return f"slopes from {least:.6g} to {most:.6g}, expected {lower:g} to {upper:g}"
    if upper <= lower:
        return ""
    # Two roundings stand between the slope that was drawn and the quotient: it is as exact as the dtype.
    rounded = slopes.to(source.dtype).clamp(lower, upper)
    return uniform_between(
        rounded, float(rounded.min().clamp(max=lower)), float(rounded.max().clamp(min=upper))
    )
