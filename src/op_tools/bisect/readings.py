"""The result of a run as numbers, and whether it is the reference result again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from op_tools.runs import BadInput

__all__ = ["Reading", "ResultJudge", "distance", "numbers_in", "pattern_of"]

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\b(?:nan|inf(?:inity)?)\b)"
_NUMBERS = re.compile(_NUMBER, re.IGNORECASE)
# `loss 2.5`, `Loss: 2.5`, `train_loss=2.5`, `{'loss': tensor(2.5)}`; not `loss_scale 65536`.
_LOSS = re.compile(rf"loss\b['\")\]]*[\s:=]*(?:is\s+)?(?:tensor\()?\[?({_NUMBER})", re.IGNORECASE)

# A run is restored when it has lost this share of the error, or when only rounding is left.
SHARE_LEFT = 0.1
ROUNDING = 1e-5
# The error of a run that gave NaN, or no numbers at all, has no size to take a share of.
WITHOUT_A_SIZE = 1e-3
# Of the largest number: losses that went to zero and small elements of a vector consist of its rounding.
NEARLY_ZERO = 1e-2


def numbers_in(text: str) -> tuple[float, ...]:
    """All numbers of a text, nan and inf included."""
    return tuple(float(number) for number in _NUMBERS.findall(text))


def pattern_of(text: str) -> re.Pattern[str]:
    """The pattern of --result. A bad one is bad input."""
    try:
        return re.compile(text, re.MULTILINE)
    except re.error as error:
        raise BadInput(
            f"--result {text!r} is not a valid pattern: {error}. Expected a regular expression whose group is the "
            rf"number, for example 'accuracy: (\S+)'."
        ) from error


@dataclass(frozen=True)
class Reading:
    """Where the result of a run is: in what it prints, in a file it writes, or in its exit code."""

    pattern: re.Pattern[str] | None = None
    file: Path | None = None
    exit_code: bool = False

    def read(self, printed: str) -> tuple[float, ...]:
        """The result of a run that ended well; empty if it has none."""
        if self.exit_code:
            return (0.0,)
        if self.file is not None:
            return _in_file(self.file)
        if self.pattern is not None:
            return tuple(_matched(self.pattern, printed))
        found = tuple(float(number) for number in _LOSS.findall(printed))
        lines = [line for line in printed.splitlines() if line.strip()]
        return found or numbers_in(lines[-1] if lines else "")

    def advice(self) -> str:
        """What to do when the script ended well and no result was found."""
        if self.file is not None:
            return f"--result-file {self.file} was not written, or holds no number (JSON or plain numbers)."
        how = (
            f"--result {self.pattern.pattern!r} matches no number in it"
            if self.pattern is not None
            else "there is no `loss` followed by a number in it, and no number in its last line"
        )
        return (
            f"{how}. Say where the result is: --result REGEX with the number in a group, such as "
            r"--result 'accuracy: (\S+)', --result-file FILE for a file the script writes, or --exit-code if the script "
            "fails when it is wrong."
        )


def _matched(pattern: re.Pattern[str], printed: str) -> Iterator[float]:
    for match in pattern.finditer(printed):
        for part in match.groups() or (match[0],):
            yield from numbers_in(part or "")


def _in_file(file: Path) -> tuple[float, ...]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    try:
        return tuple(_leaves(json.loads(text)))
    except ValueError:
        return numbers_in(text)


def _leaves(value: Any) -> Iterator[float]:
    """The numbers of a JSON document, in order."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


def distance(result: Sequence[float], reference: Sequence[float], smallest: float = 0.0) -> float:
    """The largest relative difference of a number from the reference's. Infinite if they cannot be compared.

    Numbers nearer to zero than `smallest` are measured against that instead of themselves.
    """
    if len(result) != len(reference) or not reference:
        return math.inf
    apart = [(mine, right) for mine, right in zip(result, reference, strict=True) if mine != right]
    if not all(math.isfinite(value) for pair in apart for value in pair):
        return math.inf
    return max((abs(mine - right) / (max(abs(right), smallest) or 1.0) for mine, right in apart), default=0.0)


def _smallest(bad: Sequence[float], reference: Sequence[float]) -> float:
    """What counts as zero beside the largest number that the fault changes. Counts and settings stay as they are."""
    changed = reference
    if len(bad) == len(reference):
        changed = [right for mine, right in zip(bad, reference, strict=True) if mine != right]
    return NEARLY_ZERO * max((abs(right) for right in changed if math.isfinite(right)), default=0.0)


@dataclass(frozen=True)
class ResultJudge:
    """Decides whether a result is the reference result again."""

    reference: tuple[float, ...]
    gap: float  # from the bad result to the reference
    allowance: float
    nearest: float  # what would be the same result
    smallest: float = 0.0  # see `distance`

    @classmethod
    def between(
        cls, bad: Sequence[float], reference: Sequence[float], tolerance: float | None = None
    ) -> ResultJudge:
        """For a bad result (empty if the run failed) and the result it should have had."""
        smallest = _smallest(bad, reference)
        gap = distance(bad, reference, smallest)
        if tolerance is not None:
            return cls(tuple(reference), gap, tolerance, tolerance, smallest)
        share = SHARE_LEFT * gap if math.isfinite(gap) else WITHOUT_A_SIZE
        return cls(tuple(reference), gap, max(share, ROUNDING), ROUNDING, smallest)

    def distance(self, result: Sequence[float]) -> float:
        return distance(result, self.reference, self.smallest)

    @property
    def nothing_wrong(self) -> bool:
        """Whether the bad result is as good as the reference."""
        return self.gap <= self.nearest

    def restored(self, result: Sequence[float]) -> bool:
        """Whether a result is the reference again, but for rounding and a small share of the error."""
        return self.distance(result) <= self.allowance
