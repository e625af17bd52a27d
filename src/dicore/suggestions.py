"""What a misspelt name was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["closest", "did_you_mean"]


def closest(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names that are most like this one, best first."""
    return difflib.get_close_matches(name, sorted(known), n=most, cutoff=cutoff)


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """A sentence to put behind an error, with a blank in front of it; empty when nothing is close."""
    found = closest(name, known, most=most, cutoff=cutoff)
    return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""
