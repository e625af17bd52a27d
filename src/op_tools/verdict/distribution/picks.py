"""Permutations and picks by weight, as independent draws.

In a random permutation the number of smaller ones among those before an element is uniform, and independent of all others of its
kind. A pick without replacement is a draw by weight from what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from op_tools.verdict.distribution.draws import NotJudged, RandomDraws, Take, flat, sampler

if TYPE_CHECKING:
    from op_tools.verdict.distribution.laws import Law, Named

# Permutations are looked at on so many elements: their order among themselves is a random permutation too.
MOST_ORDERED = 1 << 15
# Weights that are summed up.
MOST_WEIGHTS = 1 << 22
# The distribution function of so few categories shows wrong weights in any order.
FEW_CATEGORIES = 8


def permutation(named: Named, results: Sequence[Any]) -> Law:
    values = flat(results[0])
    count = values.numel()
    if not count:
        raise NotJudged
    numbers = values.long()
    inside = bool((numbers == values).all()) and bool(((numbers >= 0) & (numbers < count)).all())
    seen = torch.zeros(count, dtype=torch.bool, device=values.device)
    if not inside or not bool(seen.index_fill_(0, numbers, True).all()):
        return f"no permutation of 0 to {count - 1}"
    ranks = sampler(count, MOST_ORDERED)(numbers).argsort().argsort()
    ones = torch.ones_like(ranks, dtype=torch.float64)
    smaller = sums_before(torch.zeros_like(ranks), ranks, ones)

    def interval(x: Tensor, take: Take) -> tuple[Tensor, Tensor]:
        index = torch.arange(1, x.numel() + 1, dtype=torch.float64, device=x.device)
        return x / index, (x + 1) / index

    return RandomDraws(smaller, interval, discrete=True)


def sums_before(rows: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """For each element: the weights of those before it in its row that have a smaller key.

    Elements of a row follow each other. Stretches of 1, 2, 4, ... elements are taken in pairs: each left one adds to its
    right one.
    """
    count = keys.numel()
    found = torch.zeros(count, dtype=torch.float64, device=keys.device)
    index = torch.arange(count, device=keys.device)
    index = index - _starts(rows, index)
    order = keys.argsort()
    longest = int(index.max()) + 1 if count else 0
    width = 1
    while width < longest:
        pair = rows * (longest // width + 1) + index // (2 * width)
        ranked = order[pair[order].argsort(stable=True)]  # by pair, then by key
        left = index[ranked] // width % 2 == 0
        sums = torch.where(left, weights[ranked], 0.0).cumsum(0)
        first = _starts(pair[ranked], torch.arange(count, device=keys.device))
        before = torch.where(first > 0, sums[(first - 1).clamp(min=0)], 0.0)
        found[ranked] += torch.where(left, 0.0, sums - before)
        width *= 2
    return found


def _starts(groups: Tensor, index: Tensor) -> Tensor:
    """Where the group of each element begins; groups follow each other."""
    new = torch.ones_like(groups, dtype=torch.bool)
    new[1:] = groups[1:] != groups[:-1]
    return torch.where(new, index, 0).cummax(0).values


def multinomial(named: Named, results: Sequence[Any]) -> Law:
    weights, picks = named.get("self"), results[0]
    if not isinstance(weights, Tensor) or not isinstance(picks, Tensor) or not picks.numel():
        raise NotJudged
    replacement = bool(named.get("replacement", False))
    weights, picks = weights.reshape(-1, weights.shape[-1]), picks.reshape(-1, picks.shape[-1])
    categories = weights.shape[1]
    if bool((picks < 0).any()) or bool((picks >= categories).any()):
        return "a category that does not exist"
    if bool((weights.gather(1, picks) == 0).any()):
        return "a category of probability 0"
    if not replacement and bool((picks.sort(1).values.diff(dim=1) == 0).any()):
        return "a category drawn twice without replacement"
    length = picks.shape[1] if replacement else min(picks.shape[1], MOST_ORDERED)
    rows = max(
        1,
        min(
            len(picks),
            MOST_WEIGHTS // categories,
            2 * MOST_ORDERED // length if not replacement else len(picks),
        ),
    )
    weights, picks = weights[:rows].double(), picks[:rows, :length]
    if categories <= FEW_CATEGORIES:
        return _picked(weights, picks, replacement)
    # By weight too: among many categories, wrong weights do not show in the order of their numbers.
    order = weights.argsort(1)
    ranks = torch.empty_like(order).scatter_(
        1, order, torch.arange(categories, device=order.device).expand_as(order)
    )
    by_weight = _picked(weights.gather(1, order), ranks.gather(1, picks), replacement)
    return [_picked(weights, picks, replacement), by_weight]


def _picked(weights: Tensor, picks: Tensor, replacement: bool) -> RandomDraws:
    sums = weights.cumsum(1)
    total, own = sums[:, -1:], weights.gather(1, picks)
    below = sums.gather(1, picks) - own
    likely = 1.0
    if replacement:
        likely = float((weights / total).max())
        low, high = below / total, (below + own) / total
    else:
        which = torch.arange(len(weights), device=picks.device)[:, None].expand_as(picks).reshape(-1)
        below = below - sums_before(which, picks.reshape(-1), own.reshape(-1)).view_as(own)
        left = total - (own.cumsum(1) - own)
        low, high = below / left, (below + own) / left
        # The last picks of a row have no choice, and what is left of sums is rounding.
        choice = left > 1e-6 * total
        low, high, picks = low[choice], high[choice], picks[choice]
    low, high = low.reshape(-1).clamp(0, 1), high.reshape(-1).clamp(0, 1)
    return RandomDraws(
        picks.reshape(-1), lambda x, take: (take(low), take(high)), discrete=True, most_likely=likely
    )
