"""Judges random operators by their distribution and their algebra, since no reference gives the same values.

An operator's law (`laws`, `picks`, `masks`) looks at every value: NaN, range, what dropout keeps. What is random in the results
becomes draws, and draws become points of [0, 1] that are uniform and independent exactly if the generator is right
(`draws`). One battery of tests judges them (`battery`), after a look for numbers that come again (`repeats`). All tests together
accuse a right generator once in a million calls (`evidence`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from op_tools.categories import base_name
from op_tools.verdict.distribution import battery, laws, masks, picks, repeats
from op_tools.verdict.distribution.draws import NotJudged, RandomDraws, points_of, sampler
from op_tools.verdict.distribution.evidence import LEVEL, Statistic
from op_tools.verdict.distribution.laws import Law, Named
from op_tools.verdict.judgement import Status, Verdict
from op_tools.verdict.tolerance import Tolerance

__all__ = ["LEVEL", "judge_random", "knows_distribution", "what_is_wrong"]

# torch.normal(mean, std) makes a tensor, x.normal_(mean, std) and aten.normal_ fill one.
_IN_PLACE = re.compile(r"[a-z]_(\.|$)")


def judge_random(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    results: Sequence[Any],
    *,
    tolerance: Tolerance | None = None,
    level: float = LEVEL,
) -> list[Verdict]:
    """Judge the flat results of one random call; `args` and `kwargs` hold the inputs as before the call.

    `level`: the share of right calls that may be accused.
    """
    tolerance = tolerance or Tolerance(0.0, 0.0)
    tensors = [value for value in results if isinstance(value, torch.Tensor)]
    if any(value.device.type == "meta" for value in tensors):
        return [Verdict.plain("skipped", "has no values (meta tensor)", tolerance) for _ in results]
    if tensors and not any(value.numel() for value in tensors):
        return [Verdict.plain("pass", "draws nothing", tolerance) for _ in results]
    try:
        wrong = what_is_wrong(name, args, kwargs, results, level)
    except NotJudged:
        wrong = _not_finite(args, kwargs, tensors)
        if not wrong:
            reason = "not judged: nothing is known about its distribution; values are finite"
            return [Verdict.plain("skipped", reason, tolerance) for _ in results]
    status: Status = "fail" if wrong else "pass"
    reason = wrong or "agrees with its distribution"
    return [Verdict.plain(status, reason, tolerance) for _ in results]


def knows_distribution(name: str) -> bool:
    """Whether there is a law for the operator of that name."""
    return base_name(name) in _LAWS


def what_is_wrong(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any], level: float = LEVEL
) -> str:
    """What speaks against the results of a random call; empty if nothing does. Raises NotJudged."""
    base, fills = base_name(name), _IN_PLACE.search(name) is not None
    law, parameters = _LAWS.get(base, (_unknown, ()))
    if base == "normal" and not fills:
        parameters = parameters[1:]
    named = {**dict(zip(parameters, args, strict=False)), "kind": base[-2:], "fills": fills, **kwargs}
    named.setdefault("self", named.get("input", args[0] if args else None))
    found = law(named, results)
    if isinstance(found, str):
        return found
    several = found if isinstance(found, list) else [found]
    convicting = [
        evidence
        for draws in several
        for evidence in evidence_of(draws)
        if evidence.convicts(level / len(several))
    ]
    return max(convicting, key=lambda evidence: evidence.nats).text if convicting else ""


def evidence_of(draws: RandomDraws) -> Iterator[Statistic]:
    """All that can speak against draws; what is cheap or looks at all elements comes first."""
    yield from draws.evidence
    points = points_of(draws)
    sample = sampler(draws.values.numel(), draws.most)(draws.values)
    widths = points.high - points.low
    # A right generator of continuous values may be coarser than its dtype.
    same, likely = float(widths.mean()), draws.most_likely
    if not draws.discrete:
        same, likely = (2 * value + repeats.LEAST_DIFFERENT for value in (same, float(widths.max())))
    yield from repeats.equal_values(draws.values, sample, same)
    yield from repeats.stretches(draws.values if draws.told_by is None else draws.told_by, likely)
    if draws.levels > 2:
        yield from battery.digits(sample, draws.levels, draws.offset)
    yield from battery.evidence_of(points)


def _not_finite(args: Sequence[Any], kwargs: Mapping[str, Any], results: list[torch.Tensor]) -> str:
    """A NaN that no input explains; masks may empty a whole row, which is one."""
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if any(value.dtype == torch.bool or not bool(value.isfinite().all()) for value in inputs):
        return ""
    # Only the first result: what else an attention kernel returns (sums padded with Inf, seeds) is its own business.
    broken = sum(int(value.isnan().sum()) for value in results[:1] if value.is_floating_point())
    return f"{broken} values are NaN" if broken else ""


def _unknown(named: Named, results: Sequence[Any]) -> Law:
    raise NotJudged


_DROPOUT = ("self", "p")
_LAWS: dict[str, tuple[Callable[[Named, Sequence[Any]], Law], tuple[str, ...]]] = {
    "uniform": (laws.uniform, ("self", "from", "to")),
    "rand": (laws.uniform, ()),
    "rand_like": (laws.uniform, ()),
    "normal": (laws.normal, ("self", "mean", "std")),
    "normal_functional": (laws.normal, ("self", "mean", "std")),
    "randn": (laws.normal, ()),
    "randn_like": (laws.normal, ()),
    "exponential": (laws.exponential, ("self", "lambd")),
    "cauchy": (laws.cauchy, ("self", "median", "sigma")),
    "log_normal": (laws.log_normal, ("self", "mean", "std")),
    "_standard_gamma": (laws.gamma, ("self",)),
    "geometric": (laws.geometric, ("self", "p")),
    "bernoulli": (laws.bernoulli, ("self", "p")),
    "poisson": (laws.poisson, ("self",)),
    "binomial": (laws.binomial, ("count", "prob")),
    "randint": (laws.integers_of_factory, ("a", "b", "c")),
    "randint_like": (laws.integers_of_factory, ("self", "a", "b")),
    "random": (laws.integers_in_place, ("self", "from", "to")),
    "randperm": (picks.permutation, ()),
    "multinomial": (picks.multinomial, ("self", "num_samples", "replacement")),
    "dropout": (masks.dropout, _DROPOUT),
    "native_dropout": (masks.dropout, _DROPOUT),
    "_fused_dropout": (masks.dropout, _DROPOUT),
    "dropout1d": (masks.channel_dropout, _DROPOUT),
    "dropout2d": (masks.channel_dropout, _DROPOUT),
    "dropout3d": (masks.channel_dropout, _DROPOUT),
    "feature_dropout": (masks.channel_dropout, _DROPOUT),
    "alpha_dropout": (masks.alpha_dropout, _DROPOUT),
    "rrelu": (masks.leaky, ("self", "lower", "upper")),
    "rrelu_with_noise": (masks.leaky, ("self", "noise", "lower", "upper")),
}
