"""How surprising a statistic is: the logarithm of one over the probability that a correct generator shows it, in nats.

Bounds that hold for any number of samples: Chernoff's for rates and sums of squares, Bernstein's for sums of bounded terms,
Dvoretzky-Kiefer-Wolfowitz's for distribution functions; where a statistic is normal, its own tail.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# Of right calls, not more than this share may be accused: once in a million, where users are promised once in ten thousand.
LEVEL = 1e-6

# How the level is shared among the tests of one call: they add up to 1, so the sum of all is what Bonferroni allows.
SHARES = {
    "mean": 0.2, "variance": 0.2, "total": 0.15, "peak": 0.05, "shape": 0.04, "bins": 0.04, "tails": 0.04, "bits": 0.04,
    "lanes": 0.04, "period": 0.03, "dependence": 0.04, "coincidences": 0.02, "neighbours": 0.02, "repeats": 0.02,
    "parameter": 0.02, "run": 0.01, "trend": 0.02, "rows": 0.02,
}  # fmt: skip

# From so many expected events on, Chernoff's bound is sharpened.
MANY_EVENTS = 100.0


class Statistic(NamedTuple):
    """What one test found."""

    test: str  # a name of SHARES
    nats: float
    text: str

    def convicts(self, level: float) -> bool:
        return not self.nats <= math.log(1 / (level * SHARES[self.test]))


def normal_nats(z: float) -> float:
    """|z| of a standard normal variable, both sides."""
    z = abs(z)
    if not z < 35:  # erfc becomes 0; NaN is as surprising as can be
        return z * z / 2 + math.log(z) if z < math.inf else math.inf
    return -math.log(math.erfc(z / math.sqrt(2)))


def _sharpened(exponent: float, events: float) -> float:
    """Both sides of Chernoff's bound e^-exponent. Of many events the tail is the normal one of the signed root."""
    if events < MANY_EVENTS or not exponent < math.inf:
        return exponent - math.log(2)
    return normal_nats(math.sqrt(max(0.0, 2 * exponent)))


def squares_nats(mean_square: float, count: int) -> float:
    """The mean of `count` squares of standard normal variables, both sides."""
    if not 0 < mean_square < math.inf:
        return math.inf if count else 0.0
    return _sharpened(count / 2 * (mean_square - 1 - math.log(mean_square)), count)


def rate_nats(hits: float, count: int, p: float) -> float:
    """`hits` of `count` draws of probability p, both sides."""
    if not count:
        return 0.0
    q, p = hits / count, min(max(p, 0.0), 1.0)
    distance = sum(a * math.log(a / b) if b > 0 else math.inf for a, b in ((q, p), (1 - q, 1 - p)) if a > 0)
    return _sharpened(count * distance, count * p * (1 - p))


def count_nats(total: float, expected: float) -> float:
    """A number of events of a Poisson process, both sides."""
    if expected <= 0:
        return math.inf if total else 0.0
    return _sharpened((total * math.log(total / expected) if total else 0.0) - total + expected, expected)


def terms_nats(shift: float, variance: float, largest: float) -> float:
    """Bernstein: a sum of terms of that variance in all, none larger than `largest`, both sides."""
    return shift * shift / 2 / (variance + largest * abs(shift) / 3) - math.log(2)


def excess_nats(hits: float, expected: float) -> float:
    """Chernoff for rare events: more hits than expected."""
    if hits <= expected:
        return 0.0
    return hits * math.log(hits / expected) - hits + expected if expected > 0 else math.inf


def shape_nats(distance: float, count: int) -> float:
    """Dvoretzky-Kiefer-Wolfowitz: the largest distance of an empirical distribution function."""
    return 2 * count * distance * distance - math.log(2)


def bins_nats(statistic: float, freedom: int) -> float:
    """A chi-square statistic that is too large, by Wilson and Hilferty's cube root."""
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - 1 + spread) / math.sqrt(spread)
    return normal_nats(z) if z > 0 else 0.0
