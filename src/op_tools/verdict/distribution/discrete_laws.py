"""The laws of discrete numbers: integers, counts and flags."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from op_tools.verdict.distribution.draws import (
    LANES,
    MOST_SAMPLES,
    NotJudged,
    Take,
    discrete,
    flat,
    parameter,
    taken,
)
from op_tools.verdict.distribution.evidence import (
    MANY_EVENTS,
    Statistic,
    count_nats,
    excess_nats,
    rate_nats,
    squares_nats,
)
from op_tools.verdict.distribution.laws import SLOW_SAMPLES, checked_values
from op_tools.verdict.rounding import format_of

if TYPE_CHECKING:
    from op_tools.verdict.distribution.laws import Law, Named

# A binomial distribution is summed term by term.
MOST_TERMS = 1 << 22


def _integers_only(values: Tensor) -> bool:
    return not values.is_floating_point() or bool((values == values.round()).all())


def geometric(named: Named, results: Sequence[Any]) -> Law:
    p, values = float(named["p"]), flat(results[0])
    if wrong := checked_values(values):
        return wrong
    if float(values.min()) < 1 or not _integers_only(values):
        return "values other than 1, 2, 3, ..."
    if p >= 1:
        return "" if bool((values == 1).all()) else "values other than 1 though p is 1"
    log_q = math.log1p(-p)

    def interval(first: Tensor, last: Tensor, take: Take) -> tuple[Tensor, Tensor]:
        return -torch.expm1((first - 1) * log_q), -torch.expm1(last * log_q)

    # n values are n successes in as many trials as their sum.
    trials = float(values.double().sum())
    total = _total(values, rate_nats(values.numel(), round(trials), p), trials, values.numel() / p)
    return discrete(values, interval, most_likely=p, evidence=total)


def _total(values: Tensor, nats: float, total: float, expected: float) -> tuple[Statistic, ...]:
    """What the sum of all values says, where their dtype counts without gaps."""
    if values.is_floating_point() and float(values.max()) > 1 / torch.finfo(values.dtype).eps:
        return ()
    return (
        Statistic("total", nats, f"a sum of {total:.9g} in {values.numel()} draws, expected {expected:.9g}"),
    )


def bernoulli(named: Named, results: Sequence[Any]) -> Law:
    values = flat(results[0])
    if wrong := checked_values(values):
        return wrong
    if bool(((values != 0) & (values != 1)).any()):
        return "values other than 0 and 1"
    p = named.get("p")
    if p is None and isinstance(named.get("self"), Tensor) and not named.get("fills", False):
        p = named["self"]
    return flags(values, parameter(p, 0.5, results[0]))


def flags(values: Tensor, p: Tensor | float, **facts: Any) -> Law:
    """Zeros and ones, or booleans, that are 1 with probability p."""
    if isinstance(p, Tensor):
        if bool(((p == 0) & (values == 1)).any()) or bool(((p == 1) & (values == 0)).any()):
            return "a draw that its probability excludes"
        p = p.clamp(0, 1)
        facts = {"parameters": (p,), **facts}
        facts = {"most_likely": float(torch.maximum(p, 1 - p).max()), **facts}
    else:
        if p in (0.0, 1.0):
            return "" if bool((values == p).all()) else "a draw that its probability excludes"
        # The distances of the rarer flags tell all of them.
        rare, count = min(p, 1 - p), values.numel()
        ends = torch.tensor([-1, count], device=values.device)  # the first and the last gap count too
        marks = (values != 0 if p <= 0.5 else values == 0).nonzero().view(-1)
        gaps = torch.cat([ends[:1], marks, ends[1:]]).diff()
        facts = {"told_by": gaps, "most_likely": rare, **facts}
        hits = int(values.count_nonzero())
        text = f"a rate of {hits / count:.6g} in {count} draws, expected {p:.6g}"
        total = Statistic("total", rate_nats(hits, count, p), text)
        facts = {"evidence": (total, *_long_gaps(gaps, rare, count), *_lanes(values, p)), **facts}

    def interval(first: Tensor, last: Tensor, take: Take) -> tuple[Tensor, Tensor]:
        failing = 1 - taken(p, take)
        return torch.where(first == 0, 0.0, failing), torch.where(first == 0, failing, 1.0)

    return discrete(values, interval, **facts)


def _long_gaps(gaps: Tensor, rare: float, count: int) -> tuple[Statistic, ...]:
    """Draws in a row without the rarer flag: more or longer than by chance where something was not drawn."""
    found = []
    for expected in (10.0, 1.0, 0.1, 0.01, 1e-4, 1e-8):
        length = math.ceil(math.log(expected / (count * rare + 1)) / math.log1p(-rare))
        if length > 0:
            hits = int((gaps > length).sum())
            text = f"{hits} runs of {length} or more equal flags in {count} draws, expected {expected:g}"
            found.append(Statistic("run", excess_nats(hits, expected) - math.log(6), text))
    return tuple(found)


def _lanes(values: Tensor, p: float) -> tuple[Statistic, ...]:
    """Rates of every 64th and every 1024th flag: in few draws of few values they say more than scores do."""
    found = []
    for width in (LANES, 16 * LANES):
        rows = values.numel() // width
        if rows < 2:
            continue
        hits = (values[: rows * width].view(rows, width) != 0).sum(0)
        least, most = map(int, hits.aminmax())
        hit = least if rate_nats(least, rows, p) > rate_nats(most, rows, p) else most
        text = f"every {width}th flag is set in {hit} of {rows} draws, expected {p:.6g} of them"
        found.append(Statistic("lanes", rate_nats(hit, rows, p) - math.log(8 * width), text))
        variance = rows * p * (1 - p)
        if variance >= MANY_EVENTS / 2:  # rates are normal then
            spread = float((hits.double() - rows * p).square().mean()) / variance
            text = f"the rates of every {width}th flag differ {spread:.3g} times as much as by chance"
            found.append(Statistic("lanes", squares_nats(spread, width) - math.log(8), text))
    return tuple(found)


def poisson(named: Named, results: Sequence[Any]) -> Law:
    values = flat(results[0])
    rates = parameter(named.get("self"), 1.0, results[0])
    if wrong := checked_values(values):
        return wrong
    if float(values.min()) < 0 or not _integers_only(values):
        return "values other than 0, 1, 2, ..."
    if bool(((torch.as_tensor(rates) == 0) & (values != 0)).any()):
        return "values other than 0 though the rate is 0"

    alike = _alike(rates)
    if alike is not None:
        rates, most = alike, MOST_SAMPLES
        counts = torch.arange(int(values.max()) + 2, dtype=torch.float64, device=values.device)
        table = torch.where(
            counts > 0, torch.special.gammaincc(counts.clamp(min=1), counts.new_tensor(alike)), 0.0
        )

        def interval(first: Tensor, last: Tensor, take: Take) -> tuple[Tensor, Tensor]:
            return table[first.clamp(min=0).long()], table[last.long().clamp(max=len(table) - 2) + 1]
    else:
        most = SLOW_SAMPLES

        def interval(first: Tensor, last: Tensor, take: Take) -> tuple[Tensor, Tensor]:
            own = torch.as_tensor(taken(rates, take))
            below = torch.where(first > 0, torch.special.gammaincc(first.clamp(min=1), own), 0.0)
            chance = torch.exp(torch.xlogy(first, own) - own - torch.lgamma(first + 1))
            upper = torch.where(first == last, below + chance, torch.special.gammaincc(last + 1, own))
            return below, upper.clamp(max=1.0)

    least = float(torch.as_tensor(rates).min())
    # The most likely count has a probability of e^-rate at most below 1, and of about 0.4 / sqrt(rate) above.
    likely = math.exp(-least) if least < 1 else min(0.37, 0.43 / math.sqrt(least))
    expected = float(torch.as_tensor(rates).mean()) * values.numel()
    drawn = float(values.double().sum())
    return discrete(
        values, interval, most_likely=likely, most=most, parameters=() if isinstance(rates, float) else (rates,),
        evidence=_total(values, count_nats(drawn, expected), drawn, expected),
    )  # fmt: skip


def _alike(value: Tensor | float) -> float | None:
    """The parameter of all draws, if they have the same."""
    if isinstance(value, float):
        return value
    return float(value[0]) if bool((value == value[0]).all()) else None


def binomial(named: Named, results: Sequence[Any]) -> Law:
    values = flat(results[0])
    trials, p = parameter(named.get("count"), 1.0, results[0]), parameter(named.get("prob"), 0.5, results[0])
    if wrong := checked_values(values):
        return wrong
    if float(values.min()) < 0 or not _integers_only(values) or bool((values > trials).any()):
        return "values other than 0, 1, ... to the number of trials"
    widest = int(torch.as_tensor(trials).max()) + 1
    if widest > MOST_TERMS // 1024:
        raise NotJudged
    same = (_alike(trials), _alike(p))
    if same[0] is not None and same[1] is not None:
        sums = _binomial_sums(values.new_full((1,), same[0]), values.new_full((1,), same[1]), widest)[0]

        def interval(first: Tensor, last: Tensor, take: Take) -> tuple[Tensor, Tensor]:
            return sums[first.long()], sums[last.long() + 1]

        drawn, count = float(values.double().sum()), round(same[0] * values.numel())
        total = _total(values, rate_nats(drawn, count, same[1]), drawn, count * same[1])
        return discrete(values, interval, evidence=total)

    def rows(first: Tensor, last: Tensor, take: Take) -> tuple[Tensor, Tensor]:
        n, q = (torch.as_tensor(taken(value, take)).expand_as(first) for value in (trials, p))
        sums = _binomial_sums(n, q, widest)
        return sums.gather(1, first.long()[:, None])[:, 0], sums.gather(1, last.long()[:, None] + 1)[:, 0]

    own = tuple(value for value in (trials, p) if _alike(value) is None and isinstance(value, Tensor))
    return discrete(values, rows, parameters=own, most=max(1024, min(SLOW_SAMPLES, MOST_TERMS // widest)))


def _binomial_sums(trials: Tensor, p: Tensor, widest: int) -> Tensor:
    """The distribution function of each element, before and after every count."""
    n, q = trials.double()[:, None], p.double()[:, None]
    k = torch.arange(widest, dtype=torch.float64, device=n.device)
    left = (n - k).clamp(min=0)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(left + 1)
    chance = torch.where(k <= n, torch.exp(ways + torch.xlogy(k, q) + torch.xlogy(left, 1 - q)), 0.0)
    return torch.cat([torch.zeros_like(n), chance.cumsum(1)], 1).clamp(max=1.0)


def integers(low: int, high: int | None, results: Sequence[Any]) -> Law:
    values = flat(results[0])
    if high is None:
        high = _default_end(values.dtype)
    if wrong := checked_values(values):
        return wrong
    least, most = int(values.min()), int(values.max())
    if least < low or most >= high:
        return f"values from {least} to {most}, expected {low} to {high - 1}"
    if not _integers_only(values):
        return "values that are no integers"
    span = high - low
    if span == 1:
        return ""

    def interval(first: Tensor, last: Tensor, take: Take) -> tuple[Tensor, Tensor]:
        return ((first - low) / span).clamp(0, 1), ((last - low + 1) / span).clamp(0, 1)

    return discrete(values, interval, most_likely=1 / span, levels=span, offset=low)


def _default_end(dtype: torch.dtype) -> int:
    """random_() without bounds: every number of an integer dtype from 0 on, or those that a floating one counts without gaps."""
    form = format_of(dtype)
    if form is not None:
        return int((1 << form.bits) + 1)
    return 2 if dtype == torch.bool else torch.iinfo(dtype).max + 1


def integers_of_factory(named: Named, results: Sequence[Any]) -> Law:
    """randint(high, size), randint(low, high, size), randint_like(self, high), randint_like(self, low, high)."""
    numbers = [value for value in (named.get("a"), named.get("b"), named.get("c")) if isinstance(value, int)]
    ends = ("low", "high") if len(numbers) > 1 else ("high",)
    named = {**dict(zip(ends, numbers)), **named}  # noqa: B905
    if named.get("high") is None:
        raise NotJudged
    return integers(int(named.get("low", 0)), int(named["high"]), results)


def integers_in_place(named: Named, results: Sequence[Any]) -> Law:
    """random_(), random_(to), random_(from, to)."""
    low, high = named.get("from"), named.get("to")
    if high is None and low is not None and "to" not in named:
        low, high = 0, low
    return integers(int(low or 0), None if high is None else int(high), results)
