"""Pairs the calls of two runs: by rank, thread and step, each call with the one that is the same call."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from op_tools.diff.alignment import Fits, Script, align, matches, possible_share, script_of
from op_tools.diff.sequence import RecordedCall, Sequences, shapes_of
from op_tools.runs import NOTHING, BadInput

__all__ = ["PairedCall", "check_levels", "common_ranks", "pair_rank", "pair_up"]

# Two runs of one program have more than this share of the shorter one's calls in common.
LEAST_SHARE = 0.25
_CALLS_SHOWN = 3
# So many threads are found by what they call; of more, the first belongs to the first and so on.
_MOST_THREADS_SEARCHED = 64
Calls = Sequence[RecordedCall]
Keys = tuple[list[int], list[int]]


@dataclass
class PairedCall:
    """One position in the two runs: a pair of calls, or a call that one of them has alone; and what came of it."""

    rank: int
    position: int
    a: RecordedCall | None
    b: RecordedCall | None
    status: str = "not judged"  # wrong, suspect, lower_precision, pass, same, not judged
    side: str = ""  # A, B or both: where it is wrong or suspect
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    same_inputs: bool | None = None
    same_outputs: bool | None = None
    random: bool = False
    is_lost: bool = False  # what is needed to judge it was not there or could not be read
    step: int = 0  # as A counts it: the numbers of B may be others

    @property
    def call(self) -> RecordedCall:
        """The call to name: that of the side that is wrong, else that of B."""
        found = self.a if self.b is None or (self.side == "A" and self.a is not None) else self.b
        assert found is not None
        return found

    @property
    def pairing(self) -> str:
        """`aligned`, `only in A` or `only in B`."""
        if self.a is not None and self.b is not None:
            return "aligned"
        return f"only in {'B' if self.a is None else 'A'}"

    @property
    def order(self) -> tuple[int, int, int]:
        """What comes first, over all ranks."""
        return self.step, self.position, self.rank


def pair_up(a: Sequences, b: Sequences, notes: list[str]) -> list[PairedCall]:
    """All entries in order. Raises BadInput where the two are not runs of one program."""
    check_levels(a.levels, b.levels)
    ranks = common_ranks(a.by_rank.keys(), b.by_rank.keys(), notes)
    return [entry for rank in ranks for entry in pair_rank(rank, a.by_rank[rank], b.by_rank[rank])]


def pair_rank(rank: int, first: Calls, second: Calls) -> list[PairedCall]:
    """The entries of one rank. Raises BadInput where the two are not runs of one program."""
    script = _script(first, second)
    steps = _steps_of(script, first, second)
    entries: list[PairedCall] = []
    for position, ((i, j), step) in enumerate(zip(script, steps, strict=True)):
        calls = None if i is None else first[i], None if j is None else second[j]
        entries.append(PairedCall(rank, position, *calls, step=step))
    return entries


def common_ranks(a: Collection[int], b: Collection[int], notes: list[str]) -> list[int]:
    """The ranks of both runs; what only one has is noted. Raises BadInput where there is none."""
    for name, mine, other in (("A", a, b), ("B", b, a)):
        if missing := sorted(set(mine) - set(other)):
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            word = "rank" if len(missing) == 1 else "ranks"
            notes.append(f"only {name} has {word} {shown}: not compared.")
    ranks = sorted(set(a) & set(b))
    if not ranks:
        raise BadInput(
            "the two runs have no rank in common. Compare runs of the same number of processes.", NOTHING
        )
    return ranks


def check_levels(a: set[str], b: set[str]) -> None:
    """Raises BadInput where the calls of two runs were recorded at different levels."""
    if a.isdisjoint(b):
        raise BadInput(
            f"A was recorded at level {_joined(a)}, B at level {_joined(b)}: their calls cannot be paired. "
            f"Record both at one level: OP_CAPTURE_LEVEL=aten (or api), OP_OBSERVE_LEVEL=aten (or api)."
        )


def _joined(words: set[str]) -> str:
    return " and ".join(sorted(words)) or "none"


def _script(first: Calls, second: Calls) -> Script:
    keys = _numbered([call.key() for call in first], [call.key() for call in second])
    share = possible_share(*keys)
    if share >= LEAST_SHARE:
        script = _chosen(first, second, keys)
        share = _paired(script) / min(len(first), len(second))
        if share >= LEAST_SHARE:
            return script
    raise _different(first, second, keys, share)


def _numbered(first: Sequence[Hashable], second: Sequence[Hashable]) -> Keys:
    """Equal keys have one number."""
    numbers: dict[Hashable, int] = {}
    mine, other = ([numbers.setdefault(key, len(numbers)) for key in keys] for keys in (first, second))
    return mine, other


def _paired(script: Script) -> int:
    return sum(i is not None and j is not None for i, j in script)


def _chosen(first: Calls, second: Calls, keys: Keys) -> Script:
    """All calls in the order of the logs, or thread by thread where that pairs no fewer."""
    everything = _lined_up(first, second, keys, range(len(first)), range(len(second)))
    tracks = _tracks_of(first), _tracks_of(second)
    if max(map(len, tracks)) < 2:
        return everything
    pairs = _paired_tracks(*tracks, keys)
    longest = max(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))
    script: Script = []
    for pair in pairs:
        # The steps are those of the thread that trains: the others meet them at any moment.
        script += _lined_up(first, second, keys, *pair, by_step=pair is longest)
    # The number of a thread may be given to a later one: then the threads tell less than the order of the log.
    return _merged(script) if _paired(script) >= _paired(everything) else everything


# --- threads: each makes its calls in an order of its own, whatever the others do meanwhile --------------------


def _tracks_of(calls: Calls) -> list[list[int]]:
    """Positions of the calls of each thread, by first appearance.

    Which thread of autograd runs a backward call differs from run to run and from device to device: it belongs to the
    thread of its forward call, or where that is not known to one common track.
    """
    forward = [call for call in calls if call.phase != "backward"]
    if len({call.thread for call in forward}) < 2:
        return [list(range(len(calls)))]
    # Reversed: the first call of a number is the one that counts.
    started: dict[int | None, str] = {
        call.number: call.thread for call in reversed(forward) if call.number is not None
    }
    tracks: dict[str, list[int]] = {}
    for position, call in enumerate(calls):
        track = call.thread if call.phase != "backward" else started.get(call.number, "backward")
        tracks.setdefault(track, []).append(position)
    return list(tracks.values())


def _paired_tracks(
    first: list[list[int]], second: list[list[int]], keys: Keys
) -> list[tuple[list[int], list[int]]]:
    """Threads of two runs that do the same work; of equal ones the first belongs to the first. What is left is alone."""
    if max(len(first), len(second)) > _MOST_THREADS_SEARCHED:
        return [(mine or [], other or []) for mine, other in itertools.zip_longest(first, second)]
    pairs: list[tuple[list[int], list[int]]] = []
    left = [(track, Counter(keys[1][i] for i in track)) for track in second]
    for track in first:
        mine = Counter(keys[0][i] for i in track)
        # The share of both that is common: a short thread must not stand for a long one.
        shares = [2 * (mine & other).total() / (len(track) + len(theirs)) for theirs, other in left]
        best = max(range(len(left)), key=lambda i: (shares[i], -i), default=None)
        if best is None or not shares[best]:
            pairs.append((track, []))
        else:
            pairs.append((track, left.pop(best)[0]))
    return pairs + [([], track) for track, _ in left]


def _merged(script: Script) -> Script:
    """The pairs of all threads in the order of B; what A has alone follows what came before it in A."""
    after: dict[int | None, int] = {}
    last = -1
    for i, j in sorted((pair for pair in script if pair[0] is not None), key=lambda pair: pair[0] or 0):
        last = last if j is None else j
        after[i] = last

    def position(pair: tuple[int | None, int | None]) -> tuple[int, int, int]:
        i, j = pair
        return (j, 0, 0) if j is not None else (after[i], 1, i or 0)

    return sorted(script, key=position)


def _lined_up(
    first: Calls,
    second: Calls,
    keys: Keys,
    mine: Sequence[int],
    other: Sequence[int],
    by_step: bool = True,
) -> Script:
    """The script of the calls at these positions."""
    groups = _by_step(first, second, mine, other) if by_step else [(mine, other)]
    script: Script = []
    for left, right in groups:
        found = align(
            [keys[0][i] for i in left], [keys[1][j] for j in right], _fits(first, second, left, right)
        )
        script += _with_changed_lines(first, second, _at(found, left, right))
    return script


def _fits(first: Calls, second: Calls, mine: Sequence[int], other: Sequence[int]) -> Fits:
    return lambda i, j: shapes_of(first[mine[i]]) == shapes_of(second[other[j]])


def _at(script: Script, mine: Sequence[int], other: Sequence[int]) -> Script:
    """A script of positions in two selections, as positions in the whole."""
    return [(None if i is None else mine[i], None if j is None else other[j]) for i, j in script]


def _steps_of(script: Script, first: Calls, second: Calls) -> list[int]:
    """The step of each position, for both runs alike: a run that was resumed counts from elsewhere."""
    shared = _share_steps({_step(call) for call in first}, {_step(call) for call in second})
    steps: list[int] = []
    last = 0
    for i, j in script:
        if i is not None:
            last = _step(first[i])
        elif shared and j is not None:
            last = _step(second[j])
        steps.append(last)
    return steps


def _step(call: RecordedCall) -> int:
    return -1 if call.step is None else call.step


def _share_steps(first: Collection[int], second: Collection[int]) -> bool:
    """Whether a number means the same step in both: not where few numbers are in both."""
    return 2 * len(set(first) & set(second)) > min(len(first), len(second))


def _by_step(
    first: Calls, second: Calls, mine: Sequence[int], other: Sequence[int]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Positions of the calls of each step in either run: steps of one number, or in their order, or all calls at once.

    The numbers mean nothing where few are in both: one program may have made both runs, or one was resumed.
    """
    steps: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
    for calls, positions, found in zip((first, second), (mine, other), steps, strict=True):
        for position in positions:
            found.setdefault(_step(calls[position]), []).append(position)
    if _share_steps(*steps):
        for step in sorted(steps[0].keys() | steps[1].keys()):
            yield steps[0].get(step, []), steps[1].get(step, [])
    elif len(steps[0]) == len(steps[1]):
        yield from zip(*([found[step] for step in sorted(found)] for found in steps), strict=True)
    else:
        yield mine, other


def _with_changed_lines(first: Calls, second: Calls, script: Script) -> Script:
    """Where both runs have calls of their own at one position, the same operators there belong together: the source line
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


def _within_gap(first: Calls, second: Calls, gap: Script) -> Script:
    mine = [i for i, _ in gap if i is not None]
    other = [j for _, j in gap if j is not None]
    if not mine or not other:
        return gap
    keys = _numbered([first[i].weak_key() for i in mine], [second[j].weak_key() for j in other])
    return _at(script_of(matches(*keys), len(mine), len(other)), mine, other)


def _different(first: Calls, second: Calls, keys: Keys, share: float) -> BadInput:
    differing = [i for i in range(min(len(first), len(second))) if keys[0][i] != keys[1][i]]
    shown = "".join(
        f"\n  call {i + 1}: A {_named(first[i])}\n  {' ' * len(str(i + 1))}       B {_named(second[i])}"
        for i in differing[:_CALLS_SHOWN]
    )
    return BadInput(
        f"these are captures of two different scripts: at most {share:.0%} of the calls of the shorter run fit the other "
        f"(operator, source line and module). The first calls that differ:{shown}\n"
        f"Run the same script twice, with the same arguments and the same tool settings, and give the two results folders.",
        NOTHING,
    )


def _named(call: RecordedCall) -> str:
    return f"{call.name} in {call.location or 'no source line'}"
