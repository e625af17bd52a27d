"""What a law makes of an operator's results: draws, each with the interval of the distribution function that it stands for.

A continuous value stands for the numbers that round to it, a discrete one for its jump. A point drawn from each interval is
uniform on [0, 1] and independent of the others exactly if the generator is right, whatever the distribution, so one
battery of tests judges all of them, also where every element has its own parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from op_tools.verdict.distribution.evidence import Statistic
from op_tools.verdict.rounding import format_of, unit_in_last_place

# Distribution functions and dependence are looked at on so many draws; NaN, ranges, rates and repeats on all.
MOST_SAMPLES = 1 << 17
# Stretches of neighbours that a sample consists of: they keep what neighbours have to do with each other.
STRETCHES = 4
LANES = 64
# Some right generators of float32 numbers make them from 23 random bits, whatever their distribution.
LEAST_STEP = 2**-23

Take = Callable[[Tensor], Tensor]
Interval = Callable[[Tensor, Take], tuple[Tensor, Tensor]]


class NotJudged(Exception):
    """Nothing is known about this call's distribution."""


@dataclass(frozen=True)
class RandomDraws:
    """Independent draws, and the law that each of them follows."""

    values: Tensor  # all of them, flat, as they were drawn
    interval: Interval  # of sampled values in float64: both ends in the distribution function
    discrete: bool
    most_likely: float = 1.0  # no value of a discrete law is more probable; 1: unknown
    told_by: Tensor | None = None  # fewer numbers that tell the values, for which `most_likely` holds
    parameters: tuple[Tensor, ...] = ()  # one number for each draw, which it must not depend on in other ways
    most: int = MOST_SAMPLES
    evidence: tuple[Statistic, ...] = ()  # what the law itself says of all values
    levels: int = 0  # so many integers from `offset` on, all equally likely
    offset: int = 0


@dataclass
class Points:
    """A sample of draws as points of [0, 1]."""

    at: Tensor
    low: Tensor
    high: Tensor
    discrete: bool
    parameters: tuple[Tensor, ...] = field(default=())

    @property
    def count(self) -> int:
        return self.at.numel()

    @property
    def granule(self) -> float:
        """The mean part of [0, 1] that one continuous value stands for; it may be rounded in any direction."""
        return float((self.high - self.low).mean()) if not self.discrete and self.count else 0.0


def flat(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise NotJudged
    value = value.detach()
    return (torch.view_as_real(value.resolve_conj()) if value.is_complex() else value).reshape(-1)


def sampler(count: int, most: int) -> Take:
    """Takes the same sample of any tensor with `count` elements."""
    if count <= most:
        return lambda tensor: tensor
    length, half = most // STRETCHES, count // 2
    # Two of either half, the same distance apart: what the halves have to do with each other shows. Between the two what repeats
    # every 2, 4, ... LANES elements keeps its phase.
    second = (half - length) // LANES * LANES
    starts = [0, second, half, half + second]
    return lambda tensor: torch.cat([tensor[start : start + length] for start in starts])


def points_of(draws: RandomDraws) -> Points:
    """One point of each sampled draw's interval, by a generator of our own: the program's is left alone.

    Its seed comes from the draws, so that a verdict can be repeated and two calls do not share its luck.
    """
    take = sampler(draws.values.numel(), draws.most)
    low, high = draws.interval(take(draws.values).double(), take)
    generator = torch.Generator(low.device).manual_seed(hash((low.numel(), float(low.sum()))) % (1 << 62))
    inside = torch.rand(low.shape, dtype=torch.float64, device=low.device, generator=generator)
    at = (low + (high - low) * inside).clamp(1e-300, 1 - 2**-53)
    return Points(at, low, high, draws.discrete, tuple(take(value).double() for value in draws.parameters))


def continuous(
    values: Tensor, cdf: Callable[[Tensor, Take], Tensor], step: float = LEAST_STEP, **facts: Any
) -> RandomDraws:
    """Draws of a continuous law, made from multiples of `step` in [0, 1], and rounded to their dtype."""
    form = format_of(values.dtype)
    if form is None:
        raise NotJudged

    def interval(x: Tensor, take: Take) -> tuple[Tensor, Tensor]:
        above, below = x > form.largest, x < -form.largest  # infinities stand for what lies beyond
        x = x.clamp(-form.largest, form.largest)
        half_unit = unit_in_last_place(x, form) / 2
        low, high = cdf(x - half_unit, take) - step / 2, cdf(x + half_unit, take) + step / 2
        return low.clamp_(min=0).masked_fill_(below, 0), high.clamp_(max=1).masked_fill_(above, 1)

    return RandomDraws(values, interval, discrete=False, **facts)


def discrete(
    values: Tensor, interval: Callable[[Tensor, Tensor, Take], tuple[Tensor, Tensor]], **facts: Any
) -> RandomDraws:
    """Draws of integers: `interval` of the smallest and the largest one that a value may stand for."""
    form = format_of(values.dtype)

    def rounded(x: Tensor, take: Take) -> tuple[Tensor, Tensor]:
        if form is None:
            return interval(x, x, take)
        # Beyond this number the dtype has gaps.
        slack = torch.where(x.abs() > 1 / form.roundoff, (unit_in_last_place(x, form) / 2).floor(), 0.0)
        return interval(x - slack, x + slack, take)

    return RandomDraws(values, rounded, discrete=True, **facts)


def parameter(value: Any, default: float, result: Any) -> Tensor | float:
    """A number, or one for each element of a result."""
    if not isinstance(value, Tensor):
        return default if value is None else float(value)
    if value.numel() == 1:
        return float(value)
    try:
        return flat(value.expand(result.shape)).double()
    except RuntimeError:
        raise NotJudged from None


def taken(value: Tensor | float, take: Take) -> Tensor | float:
    """The parameters of a sample."""
    return take(value) if isinstance(value, Tensor) else value
