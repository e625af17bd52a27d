"""The laws of continuous numbers: what must hold for every value, and the distribution function of each draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from op_tools.verdict.distribution.draws import (
    LEAST_STEP,
    NotJudged,
    RandomDraws,
    Take,
    continuous,
    flat,
    parameter,
    taken,
)
from op_tools.verdict.distribution.evidence import Statistic, rate_nats, squares_nats
from op_tools.verdict.rounding import Format, format_of

if TYPE_CHECKING:
    Named = dict[str, Any]
    # What is wrong with some value, or draws to be judged by their distribution.
    Law = str | RandomDraws | list[RandomDraws]

_FLOAT32 = Format(torch.float32, 24, -126, torch.finfo(torch.float32).max)

# Distribution functions that take long to compute are computed for so many draws.
SLOW_SAMPLES = 1 << 15


def not_finite(values: Tensor, tail: float = 0.0) -> str:
    """NaN, or more infinities than `tail`, the probability of a value beyond the largest number, allows."""
    if not values.is_floating_point() or bool(values.isfinite().all()):
        return ""
    if broken := int(values.isnan().sum()):
        return f"{broken} of {values.numel()} values are NaN"
    broken = int(values.isinf().sum())
    surprising = rate_nats(broken, values.numel(), tail) > math.log(1e9)
    return f"{broken} of {values.numel()} values are infinite" if surprising else ""


def finite(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest value."""
    least, most = values.aminmax()
    return float(least), float(most)


def checked_values(values: Tensor, tail: float = 0.0) -> str:
    """What is wrong whatever the law; raises NotJudged where there is nothing to judge."""
    if not values.numel():
        raise NotJudged
    return not_finite(values, tail)


def uniform(named: Named, results: Sequence[Any]) -> Law:
    low, high = float(named.get("from", 0.0) or 0.0), float(named.get("to", 1.0))
    values = flat(results[0])
    if wrong := checked_values(values):
        return wrong
    return uniform_between(values, low, high)


def uniform_between(values: Tensor, low: float, high: float, **facts: Any) -> Law:
    least, most = finite(values)
    if least < low or most > high:
        return f"values between {least:.9g} and {most:.9g}, expected {low:g} to {high:g}"
    if (low, high) == (0, 1) and most == 1:  # in other intervals rounding may give the upper end
        return f"{int((values == 1).sum())} of {values.numel()} values are 1, which [0, 1) leaves out"
    if high <= low:
        return ""
    form = format_of(values.dtype)
    step = max(LEAST_STEP, form.roundoff) if form is not None else LEAST_STEP
    return continuous(values, lambda x, take: ((x - low) / (high - low)).clamp(0, 1), step, **facts)


def normal(named: Named, results: Sequence[Any]) -> Law:
    values = flat(results[0])
    mean = parameter(named.get("mean"), 0.0, results[0])
    deviation = parameter(named.get("std"), 1.0, results[0])
    if wrong := checked_values(values):
        return wrong
    if results[0].is_complex():  # the two parts share the variance
        if isinstance(mean, Tensor) or isinstance(deviation, Tensor) or mean:
            raise NotJudged
        deviation /= math.sqrt(2)
    if isinstance(deviation, float) and deviation == 0:
        return "" if bool((values == mean).all()) else "values differ though the deviation is 0"
    if isinstance(deviation, Tensor) and not bool((deviation > 0).all()):
        raise NotJudged

    def cdf(x: Tensor, take: Take) -> Tensor:
        return torch.special.ndtr((x - taken(mean, take)) / taken(deviation, take))

    own = tuple(value for value in (mean, deviation) if isinstance(value, Tensor))
    return continuous(values, cdf, parameters=own)


def exponential(named: Named, results: Sequence[Any]) -> Law:
    rate, values = float(named.get("lambd", 1.0)), flat(results[0])
    if wrong := checked_values(values, math.exp(-rate * _largest(values))):
        return wrong
    if (least := finite(values)[0]) < 0:
        return f"a negative value, {least:.9g}"
    mean = rate * float(values.double().mean())
    text = f"the mean of {values.numel()} values is {mean:.6g} of what is expected"
    slack = LEAST_STEP + (format_of(values.dtype) or _FLOAT32).roundoff
    near = max(1.0, mean - slack) if mean > 1 else min(1.0, mean + slack)
    # The sum of n draws has a gamma distribution, that of the squares of 2 n normal variables.
    total = Statistic("total", squares_nats(near, 2 * values.numel()), text)
    return continuous(values, lambda x, take: -torch.expm1(-rate * x.clamp(min=0)), evidence=(total,))


def cauchy(named: Named, results: Sequence[Any]) -> Law:
    median, width, values = float(named.get("median", 0.0)), float(named.get("sigma", 1.0)), flat(results[0])
    if wrong := checked_values(values, 2 * width / (math.pi * _largest(values))):
        return wrong
    return continuous(values, lambda x, take: torch.atan((x - median) / width) / math.pi + 0.5)


def log_normal(named: Named, results: Sequence[Any]) -> Law:
    mean, deviation, values = float(named.get("mean", 1.0)), float(named.get("std", 2.0)), flat(results[0])
    beyond = (math.log(_largest(values)) - mean) / deviation
    if wrong := checked_values(values, math.erfc(beyond / math.sqrt(2)) / 2):
        return wrong
    if (least := finite(values)[0]) < 0:
        return f"a negative value, {least:.9g}"

    def cdf(x: Tensor, take: Take) -> Tensor:
        return torch.special.ndtr((x.clamp(min=1e-300).log() - mean) / deviation)

    return continuous(values, cdf)


def gamma(named: Named, results: Sequence[Any]) -> Law:
    values = flat(results[0])
    shape = parameter(named.get("self"), 1.0, results[0])
    if wrong := checked_values(values):
        return wrong
    if (least := finite(values)[0]) < 0:
        return f"a negative value, {least:.9g}"

    def cdf(x: Tensor, take: Take) -> Tensor:
        own = taken(shape, take)
        own = own if isinstance(own, Tensor) else torch.full_like(x, own)
        return torch.special.gammainc(own, x.clamp(min=0))

    own = (shape,) if isinstance(shape, Tensor) else ()
    return continuous(values, cdf, parameters=own, most=SLOW_SAMPLES)


def _largest(values: Tensor) -> float:
    form = format_of(values.dtype)
    if form is None:
        raise NotJudged
    return form.largest
