"""Judges random operators by their distribution and their algebra, since no reference gives the same values.

Every statistical limit is one that a correct generator crosses with probability 1e-9 at most, whatever the number of
samples: Chernoff's bound for rates, Bernstein's for sums, Dvoretzky-Kiefer-Wolfowitz's for distribution functions. They hold
for any sample size and need no tables. Each judge says what is wrong, or nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from op_tools.categories import base_name
from op_tools.verdict.judgement import Status, Verdict
from op_tools.verdict.rounding import Format, format_of, unit_in_last_place
from op_tools.verdict.tolerance import Tolerance

# ln(2 / 1e-9): what the exponents of the bounds are held against.
SURPRISE = math.log(2 / 1e-9)
# Distribution functions are compared on at most this many samples.
MOST_SAMPLES = 1 << 17
# From so many float32 numbers on, fewer than this part being different means that a generator repeats itself.
REPEAT_SAMPLES, REPEAT_UNIQUE = 1000, 0.5
# A kept value is x * (1 / (1 - p)), in one or two roundings more than x / (1 - p).
KEPT_UNITS = 2.5
# The identity is one of n! permutations: from here on rarer than 1e-9.
SURELY_PERMUTED = 13

# torch.normal(mean, std) makes a tensor, x.normal_(mean, std) and aten.normal_ fill one.
_IN_PLACE = re.compile(r"[a-z]_(\.|$)")

Named = dict[str, Any]
RandomJudge = Callable[[Named, Sequence[Any]], str]


class _NotJudgedError(Exception):
    """Nothing is known about this call's distribution."""


def judge_random(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    results: Sequence[Any],
    *,
    tolerance: Tolerance | None = None,
) -> list[Verdict]:
    """Judge the flat results of one random call; `args` and `kwargs` hold the inputs as before the call."""
    tolerance = tolerance or Tolerance(0.0, 0.0)
    base = base_name(name)
    tensors = [value for value in results if isinstance(value, torch.Tensor)]
    if any(value.device.type == "meta" for value in tensors):
        return [Verdict.plain("skipped", "has no values (meta tensor)", tolerance) for _ in results]
    judge, parameters = _JUDGES.get(base, (_unknown, ()))
    if base == "normal" and not _IN_PLACE.search(name):
        parameters = parameters[1:]
    named = {**dict(zip(parameters, args, strict=False)), "kind": base[-2:], **kwargs}
    named.setdefault("self", named.get("input", args[0] if args else None))
    try:
        wrong = judge(named, results)
    except _NotJudgedError:
        wrong = _not_finite(args, kwargs, tensors)
        if not wrong:
            reason = "not judged: nothing is known about its distribution; values are finite"
            return [Verdict.plain("skipped", reason, tolerance) for _ in results]
    status: Status = "fail" if wrong else "pass"
    reason = wrong or "agrees with its distribution"
    return [Verdict.plain(status, reason, tolerance) for _ in results]


def _not_finite(args: Sequence[Any], kwargs: Mapping[str, Any], results: list[torch.Tensor]) -> str:
    """A NaN that no input explains; masks may empty a whole row, which is one."""
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if any(value.dtype == torch.bool or not bool(value.isfinite().all()) for value in inputs):
        return ""
    # Only the first result: what else an attention kernel returns (sums padded with Inf, seeds) is its own business.
    broken = sum(int(value.isnan().sum()) for value in results[:1] if value.is_floating_point())
    return f"{broken} values are NaN" if broken else ""


def _flat(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise _NotJudgedError
    return value.detach().reshape(-1).double()


# Chance


def rate_is_off(hits: int, count: int, p: float) -> str:
    """Chernoff: a rate q of n draws has probability at most exp(-n KL(q, p)) on either side."""
    if not count:
        return ""
    q = hits / count
    distance = sum(a * math.log(a / b) if b > 0 else math.inf for a, b in ((q, p), (1 - q, 1 - p)) if a > 0)
    return f"a rate of {q:.6g} in {count} draws, expected {p:.6g}" if count * distance > SURPRISE else ""


def sum_is_off(total: float, expected: float, variance: float, largest: float, what: str) -> str:
    """Bernstein: independent terms of that variance, each within `largest` of its mean."""
    allowed = math.sqrt(2 * variance * SURPRISE) + 2 * largest * SURPRISE / 3
    return f"{what}: {total:.9g}, expected {expected:.9g}" if abs(total - expected) > allowed else ""


def distribution_is_off(
    values: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor], step: float = 0.0
) -> str:
    """Dvoretzky-Kiefer-Wolfowitz on the empirical distribution; `step` is what discreteness may add."""
    if values.numel() > MOST_SAMPLES:
        values = values[:: -(-values.numel() // MOST_SAMPLES)]
    count = values.numel()
    if not count:
        return ""
    expected = cdf(values.sort().values)
    ranks = torch.arange(count, dtype=torch.float64, device=values.device) / count
    distance = float(torch.maximum((expected - ranks).abs(), (expected - ranks - 1 / count).abs()).max())
    if not distance <= math.sqrt(SURPRISE / (2 * count)) + 1 / count + step:
        return f"the distribution of {count} values is off by {distance:.4g}"
    return ""


def repeats(value: torch.Tensor) -> str:
    count = value.numel()
    if value.dtype not in (torch.float32, torch.float64) or count < REPEAT_SAMPLES or count > MOST_SAMPLES:
        return ""
    different = value.unique().numel()
    return f"only {different} of {count} values are different" if different < REPEAT_UNIQUE * count else ""


def coarseness(value: torch.Tensor) -> float:
    """What a half's few values add to the distance of distribution functions."""
    form = format_of(value.dtype)
    return 0.0 if form is None else 4 * form.roundoff


# Continuous distributions


def _uniform(named: Named, results: Sequence[Any]) -> str:
    low, high = float(named.get("from", 0.0) or 0.0), float(named.get("to", 1.0))
    values = _flat(results[0])
    least, most = map(float, values.aminmax()) if values.numel() else (low, high)
    if least < low or most > high:
        return f"values between {least:.9g} and {most:.9g}, expected {low:g} to {high:g}"
    if high <= low:
        return ""
    span = high - low
    off = distribution_is_off(values, lambda x: ((x - low) / span).clamp(0, 1), coarseness(results[0]))
    return off or repeats(results[0])


def _normal(named: Named, results: Sequence[Any]) -> str:
    values = _flat(results[0])
    shift = _parameter(named.get("mean"), 0.0, values.numel())
    scale = _parameter(named.get("std"), 1.0, values.numel())
    if isinstance(scale, float) and scale == 0:
        return "" if bool((values == shift).all()) else "values differ though the deviation is 0"
    standard = (values - shift) / scale
    return distribution_is_off(standard, torch.special.ndtr, coarseness(results[0])) or repeats(results[0])


def _parameter(value: Any, default: float, count: int) -> torch.Tensor | float:
    """A number, or one for each of `count` values."""
    if not isinstance(value, torch.Tensor):
        return default if value is None else float(value)
    if value.numel() not in (1, count):
        raise _NotJudgedError
    return _flat(value)


def _exponential(named: Named, results: Sequence[Any]) -> str:
    rate = float(named.get("lambd", 1.0))
    values = _flat(results[0])
    if values.numel() and float(values.amin()) < 0:
        return f"a negative value, {float(values.amin()):.9g}"
    return distribution_is_off(values, lambda x: -torch.expm1(-rate * x), coarseness(results[0]))


def _cauchy(named: Named, results: Sequence[Any]) -> str:
    median, width = float(named.get("median", 0.0)), float(named.get("sigma", 1.0))
    values = (_flat(results[0]) - median) / width
    return distribution_is_off(values, lambda x: torch.atan(x) / math.pi + 0.5, coarseness(results[0]))


def _log_normal(named: Named, results: Sequence[Any]) -> str:
    mean, deviation = float(named.get("mean", 1.0)), float(named.get("std", 2.0))
    values = (_flat(results[0]).log() - mean) / deviation
    return distribution_is_off(values, torch.special.ndtr, coarseness(results[0]))


# Discrete distributions


def _geometric(named: Named, results: Sequence[Any]) -> str:
    p = float(named["p"])
    values = _flat(results[0])
    if values.numel() and (float(values.amin()) < 1 or bool((values != values.round()).any())):
        return "values other than 1, 2, 3, ..."
    return distribution_is_off(values, lambda x: -torch.expm1(x * math.log1p(-p)), p + coarseness(results[0]))


def _bernoulli(named: Named, results: Sequence[Any]) -> str:
    values = _flat(results[0])
    if bool(((values != 0) & (values != 1)).any()):
        return "values other than 0 and 1"
    p = named.get("p")
    if p is None and isinstance(named.get("self"), torch.Tensor):
        p = named["self"]
    if not isinstance(p, torch.Tensor):
        return rate_is_off(int(values.sum()), values.numel(), 0.5 if p is None else float(p))
    chance = _flat(p.expand_as(results[0]) if p.shape != results[0].shape else p)
    if bool(((chance == 0) & (values == 1)).any()) or bool(((chance == 1) & (values == 0)).any()):
        return "a draw that its probability excludes"
    variance = float((chance * (1 - chance)).sum())
    return sum_is_off(float(values.sum()), float(chance.sum()), variance, 1.0, "ones drawn")


def _poisson(named: Named, results: Sequence[Any]) -> str:
    values, rates = _flat(results[0]), _flat(named.get("self"))
    if bool((values < 0).any()) or bool((values != values.round()).any()):
        return "values other than 0, 1, 2, ..."
    total = float(rates.sum())
    return sum_is_off(float(values.sum()), total, total, 3.0, "sum of draws")


def _integers(named: Named, results: Sequence[Any]) -> str:
    low, high = int(named.get("low", 0)), named.get("high")
    if high is None:
        raise _NotJudgedError
    values = _flat(results[0])
    if values.numel() and (float(values.amin()) < low or float(values.amax()) >= int(high)):
        return f"values outside {low} to {int(high) - 1}"
    if bool((values != values.round()).any()):
        return "values that are no integers"
    span = int(high) - low
    step = 1 / span + coarseness(results[0])
    return distribution_is_off(values, lambda x: ((x - low + 1) / span).clamp(0, 1), step)


def _integers_of_factory(named: Named, results: Sequence[Any]) -> str:
    """randint(high, size), randint(low, high, size), randint_like(self, high), randint_like(self, low, high)."""
    numbers = [value for value in (named.get("a"), named.get("b"), named.get("c")) if isinstance(value, int)]
    named = {**dict(zip(("low", "high") if len(numbers) > 1 else ("high",), numbers, strict=False)), **named}
    return _integers(named, results)


def _integers_in_place(named: Named, results: Sequence[Any]) -> str:
    """random_(), random_(to), random_(from, to)."""
    low, high = named.get("from"), named.get("to")
    if high is None and low is not None and "to" not in named:
        low, high = 0, low
    return _integers({"low": low or 0, "high": high}, results)


def _permutation(named: Named, results: Sequence[Any]) -> str:
    values = _flat(results[0])
    count = values.numel()
    order = torch.arange(count, dtype=torch.float64, device=values.device)
    if not torch.equal(values.sort().values, order):
        return f"no permutation of 0 to {count - 1}"
    return "the numbers are in order" if count >= SURELY_PERMUTED and torch.equal(values, order) else ""


def _multinomial(named: Named, results: Sequence[Any]) -> str:
    weights, picks = named.get("self"), results[0]
    if not isinstance(weights, torch.Tensor) or not isinstance(picks, torch.Tensor):
        raise _NotJudgedError
    weights, picks = weights.double().reshape(-1, weights.shape[-1]), picks.reshape(-1, picks.shape[-1])
    if bool((picks < 0).any()) or bool((picks >= weights.shape[1]).any()):
        return "a category that does not exist"
    if bool((weights.gather(1, picks) == 0).any()):
        return "a category of probability 0"
    if not named.get("replacement", False):
        if bool((picks.sort(1).values.diff(dim=1) == 0).any()):
            return "a category drawn twice without replacement"
        picks = picks[:, :1]  # the first draw has the given probabilities
    chance = weights / weights.sum(1, keepdim=True)
    ones = torch.ones_like(picks, dtype=torch.float64)
    counts = torch.zeros_like(chance).scatter_add_(1, picks, ones).sum(0)
    expected = chance.sum(0) * picks.shape[1]
    variance = (chance * (1 - chance)).sum(0) * picks.shape[1]
    allowed = (2 * variance * (SURPRISE + math.log(chance.shape[1]))).sqrt() + SURPRISE
    return "categories are drawn at other rates" if bool(((counts - expected).abs() > allowed).any()) else ""


# Functions of an input


def _dropout(named: Named, results: Sequence[Any]) -> str:
    source, p = named.get("self"), float(named.get("p", 0.5))
    if not isinstance(source, torch.Tensor) or not isinstance(results[0], torch.Tensor):
        raise _NotJudgedError
    form = format_of(source.dtype)
    if form is None or source.shape != results[0].shape:
        raise _NotJudgedError
    before, after = _flat(source), _flat(results[0])
    if p >= 1:
        return "" if not bool(after.any()) else "values were kept though p is 1"
    kept = after != 0
    if wrong := _wrongly_kept(before[kept], after[kept], p, form):
        return wrong
    # A zero, or what becomes one by scaling, tells nothing about the draw.
    telling = before.abs() >= form.smallest_normal
    mask = results[1] if len(results) > 1 else None
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
        drawn = mask.reshape(-1)
        if bool((kept & ~drawn).any()) or bool((telling & drawn & ~kept).any()):
            return "the mask and the values disagree"
        return rate_is_off(int(drawn.sum()), drawn.numel(), 1 - p)
    return rate_is_off(int((kept & telling).sum()), int(telling.sum()), 1 - p)


def _wrongly_kept(before: torch.Tensor, after: torch.Tensor, p: float, form: Format) -> str:
    scaled = before / (1 - p)
    off = (after - scaled).abs() > unit_in_last_place(scaled, form) * KEPT_UNITS
    wrong = int((off & (scaled.abs() < form.largest)).sum())
    return f"{wrong} kept values are not x / (1 - p)" if wrong else ""


def _channel_dropout(named: Named, results: Sequence[Any]) -> str:
    """Whole channels are kept or dropped."""
    source, p = named.get("self"), float(named.get("p", 0.5))
    form = format_of(source.dtype) if isinstance(source, torch.Tensor) else None
    if not isinstance(source, torch.Tensor) or form is None or source.dim() < 2 or p >= 1:
        raise _NotJudgedError
    batched = source.dim() > _UNBATCHED_DIMENSIONS.get(str(named.get("kind")), 1)
    rows = (source.shape[0] * source.shape[1], -1) if batched else (source.shape[0], -1)
    before, after = source.reshape(rows), results[0].reshape(rows)
    telling = (before != 0).any(1)
    kept = (after != 0).any(1)
    partly = kept & ((after == 0) & (before != 0)).any(1)
    if bool(partly.any()):
        return f"{int(partly.sum())} channels were dropped in part"
    wrong = _wrongly_kept(_flat(before[kept]), _flat(after[kept]), p, form)
    return wrong or rate_is_off(int((kept & telling).sum()), int(telling.sum()), 1 - p)


# dropout2d takes three dimensions for (batch, channel, length).
_UNBATCHED_DIMENSIONS = {"1d": 2, "2d": 2, "3d": 4}


def _leaky(named: Named, results: Sequence[Any]) -> str:
    """rrelu in training: negative values times a slope between lower and upper."""
    source = named.get("self")
    lower, upper = float(named.get("lower", 1 / 8)), float(named.get("upper", 1 / 3))
    if not isinstance(source, torch.Tensor) or source.shape != results[0].shape:
        raise _NotJudgedError
    before, after = _flat(source), _flat(results[0])
    positive = before >= 0
    if bool((after[positive] != before[positive]).any()):
        return "values above 0 were changed"
    form = format_of(source.dtype)
    telling = ~positive & (before.abs() > (form.smallest_normal / form.roundoff if form else 0.0))
    slopes = after[telling] / before[telling]
    slack = 4 * (form.roundoff if form is not None else 0.0)
    least, most = map(float, slopes.aminmax()) if slopes.numel() else (lower, upper)
    if least < lower * (1 - slack) or most > upper * (1 + slack):
        return f"slopes from {least:.6g} to {most:.6g}, expected {lower:g} to {upper:g}"
    span = upper - lower
    if span <= 0:
        return ""
    return distribution_is_off(slopes, lambda x: ((x - lower) / span).clamp(0, 1), slack / span)


def _unknown(named: Named, results: Sequence[Any]) -> str:
    raise _NotJudgedError


_DROPOUT = ("self", "p")
_JUDGES: dict[str, tuple[RandomJudge, tuple[str, ...]]] = {
    "uniform": (_uniform, ("self", "from", "to")),
    "rand": (_uniform, ()),
    "rand_like": (_uniform, ()),
    "normal": (_normal, ("self", "mean", "std")),
    "randn": (_normal, ()),
    "randn_like": (_normal, ()),
    "exponential": (_exponential, ("self", "lambd")),
    "cauchy": (_cauchy, ("self", "median", "sigma")),
    "log_normal": (_log_normal, ("self", "mean", "std")),
    "geometric": (_geometric, ("self", "p")),
    "bernoulli": (_bernoulli, ("self", "p")),
    "poisson": (_poisson, ("self",)),
    "randint": (_integers_of_factory, ("a", "b", "c")),
    "randint_like": (_integers_of_factory, ("self", "a", "b")),
    "random": (_integers_in_place, ("self", "from", "to")),
    "randperm": (_permutation, ()),
    "multinomial": (_multinomial, ("self", "num_samples", "replacement")),
    "dropout": (_dropout, _DROPOUT),
    "native_dropout": (_dropout, _DROPOUT),
    "dropout1d": (_channel_dropout, _DROPOUT),
    "dropout2d": (_channel_dropout, _DROPOUT),
    "dropout3d": (_channel_dropout, _DROPOUT),
    "rrelu": (_leaky, ("self", "lower", "upper")),
    "rrelu_with_noise": (_leaky, ("self", "noise", "lower", "upper")),
}
