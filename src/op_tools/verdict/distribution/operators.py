"""Which law each operator follows, and what speaks against the results of a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from op_tools.verdict.distribution import battery, discrete_laws, laws, masks, picks, repeats
from op_tools.verdict.distribution.draws import NotJudged, RandomDraws, points_of, sampler
from op_tools.verdict.distribution.evidence import LEVEL, Statistic

if TYPE_CHECKING:
    from op_tools.verdict.distribution.laws import Law, Named

# In nats: draws of so small a probability are not made twice.
NEVER_TWICE = 50.0


def what_is_wrong(
    operator: str,
    fills: bool,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    results: Sequence[Any],
    level: float = LEVEL,
    seen: Callable[[int], str] | None = None,
    thorough: bool = True,
) -> str:
    """What speaks against the flat results of a call of `operator`; empty if nothing does. Raises NotJudged.

    `fills`: whether it writes to its first argument. `args` and `kwargs` are as before the call. `seen` gets a fingerprint of
    what was drawn, where no right generator draws that twice, and answers what speaks against it. Not `thorough`: of a mask only
    what all its elements say counts, no sample.
    """
    law, parameters = LAWS.get(operator, (_unknown, ()))
    if operator == "normal" and not fills:  # torch.normal(mean, std) makes a tensor
        parameters = parameters[1:]
    named = {**dict(zip(parameters, args)), "kind": operator[-2:], "fills": fills, **kwargs}  # noqa: B905
    named.setdefault("self", named.get("input", args[0] if args else None))
    found = law(named, results)
    if isinstance(found, str):
        return found
    several = found if isinstance(found, list) else [found]
    convicting = [
        statistic
        for draws in several
        for statistic in evidence_of(draws, seen, thorough)
        if statistic.convicts(level / len(several))
    ]
    return max(convicting, key=lambda statistic: statistic.nats).text if convicting else ""


def evidence_of(
    draws: RandomDraws, seen: Callable[[int], str] | None = None, thorough: bool = True
) -> Iterator[Statistic]:
    """All that can speak against draws; what is cheap or looks at all elements comes first."""
    yield from draws.evidence
    if not thorough and draws.told_by is not None:
        yield from repeats.stretches(draws.told_by, draws.most_likely)
        return
    points = points_of(draws)
    sample = sampler(draws.values.numel(), draws.most)(draws.values)
    widths = points.high - points.low
    if seen is not None and float(-widths.clamp(1e-9, 1).log().sum()) > NEVER_TWICE:
        text = seen(repeats.fingerprint(sample))
        if text:
            yield Statistic("repeats", math.inf, text)
    # A right generator of continuous values may be coarser than its dtype.
    same, likely = float(widths.mean()), draws.most_likely
    if not draws.discrete:
        same, likely = (2 * value + repeats.LEAST_DIFFERENT for value in (same, float(widths.max())))
    yield from repeats.equal_values(draws.values, sample, same, likely)
    yield from repeats.stretches(draws.values if draws.told_by is None else draws.told_by, likely)
    if draws.levels > 2:
        yield from battery.digits(sample, draws.levels, draws.offset)
    yield from battery.evidence_of(points)


def _unknown(named: Named, results: Sequence[Any]) -> Law:
    raise NotJudged


_DROPOUT = ("self", "p")
LAWS: dict[str, tuple[Callable[[Named, Sequence[Any]], Law], tuple[str, ...]]] = {
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
    "geometric": (discrete_laws.geometric, ("self", "p")),
    "bernoulli": (discrete_laws.bernoulli, ("self", "p")),
    "poisson": (discrete_laws.poisson, ("self",)),
    "binomial": (discrete_laws.binomial, ("count", "prob")),
    "randint": (discrete_laws.integers_of_factory, ("a", "b", "c")),
    "randint_like": (discrete_laws.integers_of_factory, ("self", "a", "b")),
    "random": (discrete_laws.integers_in_place, ("self", "from", "to")),
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
