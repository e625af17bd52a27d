"""Two result files beside each other: what got worse, what got better, what is otherwise new."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from _ditorch.torch_tests.model import State
from _ditorch.torch_tests.rows import Row

__all__ = ["Change", "Changes", "compare"]


@dataclass(frozen=True)
class Change:
    """One case in both files; None: it is not in that file."""

    file: str
    case: str
    before: State | None
    after: State | None
    message: str


@dataclass
class Changes:
    """All cases that differ. A regression is a case that fails now and did not fail before."""

    regressions: list[Change] = field(default_factory=list)
    fixed: list[Change] = field(default_factory=list)
    changed: list[Change] = field(default_factory=list)
    gone: list[Change] = field(default_factory=list)
    added: list[Change] = field(default_factory=list)
    same: int = 0


def compare(before: Iterable[Row], after: Iterable[Row]) -> Changes:
    """Cases are found again by file and name; the last row of a case counts."""
    old, new = ({row.key: row for row in rows} for rows in (before, after))
    changes = Changes()
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was is not None and now is not None and was.result is now.result:
            changes.same += 1
            continue
        shown = now or was
        assert shown is not None
        states = (was.result if was else None, now.result if now else None)
        _list_for(changes, *states).append(Change(*key, *states, shown.message or shown.reason))
    return changes


def _list_for(changes: Changes, was: State | None, now: State | None) -> list[Change]:
    if now is None:
        return changes.gone
    if now.unexpected:
        return changes.changed if was is not None and was.unexpected else changes.regressions
    if was is None:
        return changes.added
    if was.unexpected and now is State.PASSED:
        return changes.fixed
    return changes.changed
