"""What a misspelt name was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["closest", "did_you_mean"]


def closest(name: str, candidates: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The candidates that are most like this one, best first. Small and capital letters count the same, but of two names
    that are equally like it, the one whose letters fit better comes first."""
    by_lower = {each.lower(): each for each in sorted(candidates)}
    found = [by_lower[each] for each in difflib.get_close_matches(name.lower(), by_lower, 2 * most, cutoff)]

    def likeness(each: str) -> tuple[float, float]:
        folded = difflib.SequenceMatcher(None, name.lower(), each.lower()).ratio()
        return folded, difflib.SequenceMatcher(None, name, each).ratio()

    return sorted(found, key=likeness, reverse=True)[:most]


def did_you_mean(name: str, candidates: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """A sentence to put behind an error, with a blank in front of it; empty when nothing is close."""
    found = closest(name, candidates, most=most, cutoff=cutoff)
    return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""
