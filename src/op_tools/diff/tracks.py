"""Tells the threads of a run apart: each makes its calls in an order of its own, whatever the others do meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from op_tools.diff.sequence import RecordedCall

__all__ = ["paired_tracks", "tracks_of"]

# So many threads are found by what they call; of more, the first belongs to the first and so on.
_MOST_SEARCHED = 64
_BACKWARD = "backward"


def tracks_of(calls: Sequence[RecordedCall]) -> list[list[int]]:
    """Positions of the calls of each thread, by first appearance.

    Which thread of autograd runs a backward call differs from run to run and from device to device: it belongs to the
    thread of its forward call, or where that is not known to one common track.
    """
    started = {
        call.row.get("forward_id"): _thread(call)
        for call in reversed(calls)
        if call.phase != "backward" and isinstance(call.row.get("forward_id"), int)
    }
    threads = {_thread(call) for call in calls if call.phase != "backward"}
    if len(threads) < 2:
        return [list(range(len(calls)))]
    tracks: dict[Hashable, list[int]] = {}
    for position, call in enumerate(calls):
        if call.phase != "backward":
            track: Hashable = _thread(call)
        else:
            number = call.row.get("forward_id")
            track = started.get(number, _BACKWARD) if isinstance(number, int) else _BACKWARD
        tracks.setdefault(track, []).append(position)
    return list(tracks.values())


def _thread(call: RecordedCall) -> str:
    return str(call.row.get("thread"))


def paired_tracks(
    first: list[list[int]], second: list[list[int]], keys: tuple[Sequence[int], Sequence[int]]
) -> list[tuple[list[int], list[int]]]:
    """Threads of two runs that do the same work; of equal ones the first belongs to the first. What is left is alone."""
    if max(len(first), len(second)) > _MOST_SEARCHED:
        shorter = min(len(first), len(second))
        pairs = list(zip(first, second, strict=False))
        return (
            pairs + [(track, []) for track in first[shorter:]] + [([], track) for track in second[shorter:]]
        )
    pairs = []
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
