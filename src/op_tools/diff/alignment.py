"""Lines up two sequences of calls, given as integers: which belong together, which are in one of them only.

The method is Myers' greedy search for the shortest edit script: its cost grows with the number of differences, not with
the length. Where the two have little in common the search is cut off and goes on from the furthest point it has reached,
so that its cost stays bounded; the result is then still an alignment, only not the shortest script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Script", "align", "matches", "possible_share", "script_of"]

# (position in the first or None, position in the second or None), in order.
Script = list[tuple[int | None, int | None]]
Match = tuple[int, int]
Fits = Callable[[int, int], bool]

# Edits a search may need before it is cut off: the first one, and those that go on from there.
FIRST_LIMIT, NEXT_LIMIT = 1500, 64
# How far a group of inserted calls is moved to find where it fits best.
FURTHEST_SLIDE = 512
# A longer group is moved as a whole only.
LONGEST_SPLIT = 64


def align(first: Sequence[int], second: Sequence[int], fits: Fits | None = None) -> Script:
    """The edit script between two sequences; where several are as short, the one whose pairs fit best."""
    found = matches(first, second)
    if fits is not None:
        found = _slid(first, second, found, fits)
    return script_of(found, len(first), len(second))


def possible_share(first: Sequence[int], second: Sequence[int]) -> float:
    """No alignment pairs more than this share of the shorter sequence."""
    shorter = min(len(first), len(second))
    return (Counter(first) & Counter(second)).total() / shorter if shorter else 0.0


def script_of(found: Sequence[Match], first_length: int, second_length: int) -> Script:
    """The whole script from its matches."""
    script: Script = []
    i = j = 0
    for x, y in [*found, (first_length, second_length)]:
        script += [(k, None) for k in range(i, x)]
        script += [(None, k) for k in range(j, y)]
        if x < first_length and y < second_length:
            script.append((x, y))
        i, j = x + 1, y + 1
    return script


def matches(first: Sequence[int], second: Sequence[int]) -> list[Match]:
    """Pairs of equal elements, rising in both: a longest common subsequence unless the search was cut off."""
    start, first_end, second_end = _without_ends(first, second)
    found = [(k, k) for k in range(start)]
    # What is in one of the two only can have no partner; without it the search is short also where much is new.
    common = set(first[start:first_end]) & set(second[start:second_end])
    kept_first = [k for k in range(start, first_end) if first[k] in common]
    kept_second = [k for k in range(start, second_end) if second[k] in common]
    inner = _searched([first[k] for k in kept_first], [second[k] for k in kept_second])
    found += [(kept_first[x], kept_second[y]) for x, y in inner]
    found += zip(range(first_end, len(first)), range(second_end, len(second)), strict=True)
    return found


def _without_ends(first: Sequence[int], second: Sequence[int]) -> tuple[int, int, int]:
    """Where the common beginning stops, and where the common end begins in each."""
    shorter = min(len(first), len(second))
    start = 0
    while start < shorter and first[start] == second[start]:
        start += 1
    x, y = len(first), len(second)
    while x > start and y > start and first[x - 1] == second[y - 1]:
        x, y = x - 1, y - 1
    return start, x, y


def _searched(first: list[int], second: list[int]) -> list[Match]:
    found: list[Match] = []
    x = y = 0
    limit = FIRST_LIMIT
    while x < len(first) and y < len(second):
        part, (dx, dy) = _search(first[x:], second[y:], limit)
        found += [(x + i, y + j) for i, j in part]
        x, y, limit = x + dx, y + dy, NEXT_LIMIT
    return found


def _search(first: list[int], second: list[int], limit: int) -> tuple[list[Match], tuple[int, int]]:
    """Matches up to the end, or up to the furthest point that `limit` edits reach; and that point."""
    n, m = len(first), len(second)
    # reach[k]: how far the best path on diagonal k = x - y has come; history[d]: that of the paths with d edits.
    reach = [0] * (2 * min(limit, n + m) + 3)
    middle = len(reach) // 2
    history: list[list[int]] = []
    for edits in range(min(limit, n + m) + 1):
        # Diagonals that have left the grid are not followed any further.
        for k in range(-edits + 2 * max(0, edits - m), edits - 2 * max(0, edits - n) + 1, 2):
            down = k == -edits or (k != edits and reach[middle + k - 1] < reach[middle + k + 1])
            x = reach[middle + k + 1] if down and edits else reach[middle + k - 1] + (edits > 0)
            y = x - k
            while x < n and y < m and first[x] == second[y]:
                x, y = x + 1, y + 1
            reach[middle + k] = x
            if x >= n and y >= m:
                return _traced(history, edits, n, m), (n, m)
        history.append(reach[middle - edits : middle + edits + 1])
    edits = len(history) - 1
    x, y = max(((x, x - k) for k, x in _points(history[-1], edits, n, m)), key=sum)
    return _traced(history, edits, x, y), (x, y)


def _points(reached: list[int], edits: int, n: int, m: int) -> list[Match]:
    """(diagonal, x) of the ends of all paths with so many edits that are inside the grid."""
    ends = [(index - edits, reached[index]) for index in range(0, 2 * edits + 1, 2)]
    return [(k, x) for k, x in ends if x <= n and 0 <= x - k <= m]


def _traced(history: list[list[int]], edits: int, x: int, y: int) -> list[Match]:
    """Walk back from a point that so many edits reach."""
    found: list[Match] = []
    for count in range(edits, 0, -1):
        before = history[count - 1]  # of diagonals -(count - 1) .. count - 1
        k = x - y
        left, right = k - 1 + count - 1, k + 1 + count - 1
        down = k == -count or (k != count and before[left] < before[right])
        end = before[right] if down else before[left]
        start = end if down else end + 1
        found += [(i, i - k) for i in range(x - 1, start - 1, -1)]
        x, y = end, end - (k + 1 if down else k - 1)
    found += [(i, i) for i in range(x - 1, -1, -1)]
    found.reverse()
    return found


def _slid(first: Sequence[int], second: Sequence[int], found: list[Match], fits: Fits) -> list[Match]:
    """Move inserted and missing groups within a repeated pattern to where the pairs around them fit best."""
    end = (len(first), len(second))
    position = -1
    while position < len(found):
        before = found[position] if position >= 0 else (-1, -1)
        after = found[position + 1] if position + 1 < len(found) else end
        in_first, in_second = after[0] - before[0] - 1, after[1] - before[1] - 1
        if (in_first == 0) != (in_second == 0):
            longer = second if in_second else first
            _slide(longer, found, position, 1 if in_second else 0, in_first or in_second, fits)
        position += 1
    return found


@dataclass(frozen=True)
class _Move:
    """Elements at one end of a group swap with the neighbouring pairs at `positions`; `gain`: how many more fit then."""

    length: int = 0
    gain: int = 0
    positions: tuple[int, ...] = ()


def _slide(
    longer: Sequence[int], found: list[Match], position: int, side: int, length: int, fits: Fits
) -> None:
    """One group of `length` elements of `longer` between found[position] and found[position + 1].

    Its first elements may belong further up and its last ones further down: two holes in two repeated patterns look like
    one hole where the patterns meet.
    """

    def moved(position: int, by: int) -> Match:
        i, j = found[position]
        return (i, j + by) if side else (i + by, j)

    def best(start: int, step: int, count: int) -> _Move:
        by = -step * count
        positions = _range_of(found, start, step, lambda pair: longer[pair[side]] == longer[pair[side] + by])
        gain, move = 0, _Move()
        for number, index in enumerate(positions, 1):
            gain += fits(*moved(index, by)) - fits(*found[index])
            if gain > move.gain:
                move = _Move(count, gain, tuple(positions[:number]))
        return move

    lengths = range(1, length + 1) if length <= LONGEST_SPLIT else (length,)
    ups = [_Move(), *(best(position, -1, count) for count in lengths)]
    downs = [_Move(), *(best(position + 1, 1, count) for count in lengths)]
    both = [(up, down) for up in ups for down in downs if up.length + down.length <= length]
    up, down = max(both, key=lambda pair: pair[0].gain + pair[1].gain)
    for move, by in ((up, up.length), (down, -down.length)):
        for index in move.positions:
            found[index] = moved(index, by)


def _range_of(found: list[Match], start: int, step: int, may_move: Callable[[Match], bool]) -> list[int]:
    """Neighbouring pairs without a gap between them that the group may swap with."""
    positions: list[int] = []
    position = start
    while 0 <= position < len(found) and len(positions) < FURTHEST_SLIDE and may_move(found[position]):
        (i, j), (x, y) = found[position], found[positions[-1] if positions else position]
        if positions and abs(i - x) + abs(j - y) != 2:
            break
        positions.append(position)
        position += step
    return positions
