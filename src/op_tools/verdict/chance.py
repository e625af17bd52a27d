"""What a correct random generator does with probability 1e-9 at most, whatever the number of samples.

Chernoff's bound for rates, Bernstein's for sums, Dvoretzky-Kiefer-Wolfowitz's for distribution functions: they
hold for any sample size and need no tables. Each function says what is wrong, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from op_tools.verdict.rounding import format_of

# ln(2 / 1e-9): what the exponents of the bounds are held against.
SURPRISE = math.log(2 / 1e-9)
# Distribution functions are compared on at most this many samples.
MOST_SAMPLES = 1 << 17
# From so many float32 numbers on, fewer than this part being different means that a generator repeats itself.
REPEAT_SAMPLES, REPEAT_UNIQUE = 1000, 0.5


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
