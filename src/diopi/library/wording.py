"""Pieces of messages that several parts say in the same way."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


def counted(count: int, noun: str) -> str:
    """`1 byte`, `2 bytes`: nouns that take an s."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def nearest(word: str, known: Iterable[str], most: int = 3, cutoff: float = 0.5) -> list[str]:
    """The known names that a misspelt one is like, the likest first. Small and capital letters count the same; of two
    that are equally like it, the one whose letters fit better comes first."""
    names = {name.lower(): name for name in known}
    near = [names[name] for name in get_close_matches(word.lower(), names, 2 * most, cutoff)]

    def unlike(name: str) -> tuple[float, float]:
        pairs = ((word.lower(), name.lower()), (word, name))
        folded, exact = (-SequenceMatcher(None, *pair).ratio() for pair in pairs)
        return folded, exact

    return sorted(near, key=unlike)[:most]


def beside(name: str, front: int, behind: int) -> list[str]:
    """So many bytes in front of a tensor and behind it were written that must not be."""
    told = [f"wrote {counted(behind, 'byte')} behind the end of {name}"] if behind else []
    return told + ([f"wrote {counted(front, 'byte')} in front of {name}"] if front else [])
