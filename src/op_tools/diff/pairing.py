"""Pairs the calls of two runs: rank by rank, step by step, each call with the one that is the same call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from op_tools.diff.alignment import Script, align, matches, possible_share, script_of
from op_tools.diff.sequence import Recorded, Sequences, shapes_of
from op_tools.runs import NOTHING, BadInput

__all__ = ["Entry", "pair_up"]

# Two runs of one program have more than this share of the shorter one's calls in common.
LEAST_SHARE = 0.25
_PLACES_SHOWN = 3


@dataclass
class Entry:
    """One place in the two runs: a pair of calls, or a call that one of them has alone; and what came of it."""

    rank: int
    position: int
    a: Recorded | None
    b: Recorded | None
    status: str = "not judged"  # wrong, suspect, lower_precision, pass, same, not judged
    side: str = ""  # A, B or both: where it is wrong or suspect
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    same_inputs: bool | None = None
    same_outputs: bool | None = None
    random: bool = False

    @property
    def call(self) -> Recorded:
        """The call to name: that of the side that is wrong, else that of B."""
        found = self.a if self.b is None or (self.side == "A" and self.a is not None) else self.b
        assert found is not None
        return found

    @property
    def pairing(self) -> str:
        """`aligned`, `only in A` or `only in B`."""
        return (
            "aligned"
            if self.a is not None and self.b is not None
            else f"only in {'B' if self.a is None else 'A'}"
        )

    @property
    def order(self) -> tuple[int, int, int]:
        """What comes first, over all ranks."""
        return self.call.step or 0, self.position, self.rank


def pair_up(a: Sequences, b: Sequences, notes: list[str]) -> list[Entry]:
    """All entries in order. Raises BadInput where the two are not runs of one program."""
    _check_levels(a, b)
    ranks = sorted(a.by_rank.keys() & b.by_rank.keys())
    for name, mine, other in (("A", a, b), ("B", b, a)):
        if missing := sorted(mine.by_rank.keys() - other.by_rank.keys()):
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            word = "rank" if len(missing) == 1 else "ranks"
            notes.append(f"only {name} has {word} {shown}: not compared.")
    if not ranks:
        raise BadInput(
            "the two runs have no rank in common. Compare runs of the same number of processes.", NOTHING
        )
    entries: list[Entry] = []
    for rank in ranks:
        first, second = a.by_rank[rank], b.by_rank[rank]
        script = _script(first, second)
        entries += [
            Entry(rank, position, None if i is None else first[i], None if j is None else second[j])
            for position, (i, j) in enumerate(script)
        ]
    return entries


def _check_levels(a: Sequences, b: Sequences) -> None:
    if a.levels.isdisjoint(b.levels):
        raise BadInput(
            f"A was recorded at level {_joined(a.levels)}, B at level {_joined(b.levels)}: their calls cannot be paired. "
            f"Record both at one level: OP_CAPTURE_LEVEL=aten (or api), OP_OBSERVE_LEVEL=aten (or api)."
        )


def _joined(words: set[str]) -> str:
    return " and ".join(sorted(words)) or "none"


def _script(first: Sequence[Recorded], second: Sequence[Recorded]) -> Script:
    numbers: dict[tuple[str, ...], int] = {}
    keys = [[numbers.setdefault(call.key(), len(numbers)) for call in calls] for calls in (first, second)]
    share = possible_share(*keys)
    if share < LEAST_SHARE:
        raise _different(first, second, (keys[0], keys[1]), share)
    script: Script = []
    for mine, other in _by_step(first, second):
        script += _aligned(
            first, second, [keys[0][i] for i in mine], [keys[1][j] for j in other], mine, other
        )
    paired = sum(i is not None and j is not None for i, j in script)
    share = paired / min(len(first), len(second))
    if share < LEAST_SHARE:
        raise _different(first, second, (keys[0], keys[1]), share)
    return script


def _by_step(
    first: Sequence[Recorded], second: Sequence[Recorded]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Positions of the calls of each step in either run: steps of one number, or in their order, or all calls at once.

    The numbers mean nothing where few are in both: one program may have made both runs, or one was resumed.
    """
    steps: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
    for calls, found in zip((first, second), steps, strict=True):
        for position, call in enumerate(calls):
            found.setdefault(-1 if call.step is None else call.step, []).append(position)
    shared = len(steps[0].keys() & steps[1].keys())
    if 2 * shared > min(len(steps[0]), len(steps[1])):
        for step in sorted(steps[0].keys() | steps[1].keys()):
            yield steps[0].get(step, []), steps[1].get(step, [])
    elif len(steps[0]) == len(steps[1]):
        yield from zip(*([places for _, places in sorted(found.items())] for found in steps), strict=True)
    else:
        yield range(len(first)), range(len(second))


def _aligned(
    first: Sequence[Recorded],
    second: Sequence[Recorded],
    first_keys: list[int],
    second_keys: list[int],
    mine: Sequence[int],
    other: Sequence[int],
) -> Script:
    def fits(i: int, j: int) -> bool:
        return shapes_of(first[mine[i]]) == shapes_of(second[other[j]])

    script = align(first_keys, second_keys, fits)
    numbered: Script = [(None if i is None else mine[i], None if j is None else other[j]) for i, j in script]
    return _with_changed_lines(first, second, numbered)


def _with_changed_lines(first: Sequence[Recorded], second: Sequence[Recorded], script: Script) -> Script:
    """Where both runs have calls of their own at one place, the same operators there belong together: the source line
    was changed."""
    result: Script = []
    gap: Script = []
    for i, j in [*script, (-1, -1)]:
        if i is None or j is None:
            gap.append((i, j))
            continue
        result += _within_gap(first, second, gap)
        gap = []
        if i >= 0:
            result.append((i, j))
    return result


def _within_gap(first: Sequence[Recorded], second: Sequence[Recorded], gap: Script) -> Script:
    mine = [i for i, _ in gap if i is not None]
    other = [j for _, j in gap if j is not None]
    if not mine or not other:
        return gap
    numbers: dict[tuple[str, ...], int] = {}
    keys = [
        [numbers.setdefault(calls[place].weak_key(), len(numbers)) for place in places]
        for calls, places in ((first, mine), (second, other))
    ]
    script = script_of(matches(*keys), len(mine), len(other))
    return [(None if i is None else mine[i], None if j is None else other[j]) for i, j in script]


def _different(
    first: Sequence[Recorded],
    second: Sequence[Recorded],
    keys: tuple[Sequence[int], Sequence[int]],
    share: float,
) -> BadInput:
    places = [place for place in range(min(len(first), len(second))) if keys[0][place] != keys[1][place]]
    shown = "".join(
        f"\n  call {place + 1}: A {_named(first[place])}\n  {' ' * len(str(place + 1))}       B {_named(second[place])}"
        for place in places[:_PLACES_SHOWN]
    )
    return BadInput(
        f"these are captures of two different scripts: at most {share:.0%} of the calls of the shorter run fit the other "
        f"(operator, source line and module). The first places that differ:{shown}\n"
        f"Run the same script twice, with the same arguments and the same tool settings, and give the two results folders.",
        NOTHING,
    )


def _named(call: Recorded) -> str:
    return f"{call.name} in {call.place or 'no source line'}"
