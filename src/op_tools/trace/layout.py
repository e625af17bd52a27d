"""Puts slices on tracks where none overlaps another, and finds what encloses them: steps and modules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from op_tools.trace.reading import BACKWARD, FORWARD, TICK_NS, Process, Slice


@dataclass
class Track:
    """Slices one after the other, in the order of time."""

    name: str
    slices: list[Slice]


class Enclosing(NamedTuple):
    """A step, or the calls of a module that followed each other."""

    name: str
    kind: str
    start: int
    length: int
    calls: int


def lay_out(process: Process, flows: Iterator[int]) -> list[Track]:
    """The tracks of a process. Slices on the device's track may be moved behind one another; lengths never change."""
    process.slices.sort(key=lambda piece: piece.start)
    _tie(process.slices, flows)
    threads = _numbers(process.slices)
    queued = _queued_devices(process.slices)
    queues: dict[str, list[Slice]] = {}
    lanes: dict[tuple[str, int, int], list[Slice]] = {}
    ends: dict[tuple[str, int], list[int]] = {}
    for piece in process.slices:
        if piece.facts.device in queued:
            queues.setdefault(piece.facts.device, []).append(piece)
            continue
        open_lanes = ends.setdefault((piece.kind, threads[piece.thread]), [])
        lane = next((n for n, end in enumerate(open_lanes) if end <= piece.start), len(open_lanes))
        open_lanes[lane : lane + 1] = [piece.end]
        lanes.setdefault((piece.kind, threads[piece.thread], lane), []).append(piece)
    for queue in queues.values():
        _queue(queue)
    tracks = [
        Track(_lane_name(*key, len(threads)), lanes[key])
        for key in sorted(lanes, key=lambda key: (key[1], key[0] != FORWARD, key[2]))
    ]
    tracks += [Track(f"device {device}", queues[device]) for device in sorted(queues)]
    _untie(tracks)
    return tracks


def _lane_name(kind: str, thread: int, lane: int, threads: int) -> str:
    # Backward of calls made of several nodes can interleave; that is no reason to show it wrongly.
    notes = [f"thread {thread}"] if threads > 1 else []
    notes += [f"overlapping {lane}"] if lane else []
    return f"{kind} ({', '.join(notes)})" if notes else kind


def _numbers(slices: Sequence[Slice]) -> dict[int, int]:
    """Threads by first appearance: the identity of a thread says nothing to a reader."""
    numbers: dict[int, int] = {}
    for piece in slices:
        numbers.setdefault(piece.thread, len(numbers))
    return numbers


def _tie(slices: Sequence[Slice], flows: Iterator[int]) -> None:
    """An arrow from a call to its backward; at ATen level from the last to the first that have the same number."""
    latest: dict[int, Slice] = {}
    for piece in slices:
        if piece.kind == FORWARD:
            latest[piece.facts.forward_id] = piece
        elif (forward := latest.pop(piece.facts.forward_id, None)) is not None:
            forward.flow = piece.flow = next(flows)


def _untie(tracks: Sequence[Track]) -> None:
    """An arrow that would point back in time, because a queue moved its start, is none."""
    begun: dict[int, Slice] = {}
    for kind in (FORWARD, BACKWARD):
        for piece in itertools.chain.from_iterable(track.slices for track in tracks):
            if piece.flow and piece.kind == kind:
                start = begun.setdefault(piece.flow, piece)
                if piece.start < start.start:
                    piece.flow = start.flow = 0


def _queued_devices(slices: Sequence[Slice]) -> set[str]:
    """Devices that still worked when the next call was given to them: the host's start is not when they began."""
    ends: dict[tuple[str, str, int], int] = {}
    queued: set[str] = set()
    for piece in slices:
        device = piece.facts.device
        if device and device not in queued:
            key = (device, piece.kind, piece.thread)
            if piece.start < ends.get(key, 0):
                queued.add(device)
            ends[key] = piece.end
    return queued


def _queue(slices: Sequence[Slice]) -> None:
    """A device works off one call after the other."""
    free = 0
    for piece in slices:
        piece.start = max(piece.start, _up(free))
        free = piece.end


def _up(nanoseconds: int) -> int:
    return -(-nanoseconds // TICK_NS) * TICK_NS


def enclosed(slices: Sequence[Slice]) -> Iterator[Enclosing | Slice]:
    """The slices of a track, each step and module before what it encloses."""
    return _enclosed(slices, 0, len(slices), 0)


def _enclosed(slices: Sequence[Slice], low: int, high: int, depth: int) -> Iterator[Enclosing | Slice]:
    while low < high:
        path = slices[low].facts.path
        if len(path) <= depth:
            yield slices[low]
            low += 1
            continue
        end = low + 1
        while end < high and slices[end].facts.path[depth : depth + 1] == path[depth : depth + 1]:
            end += 1
        inner = depth + 1
        if depth:  # modules that hold nothing but one other are one slice
            inner = _common({slices[index].facts.path for index in range(low, end)})
        if depth == 0 or end - low > 1:
            name = ".".join(path[1:inner]) if depth else path[0]
            start = slices[low].start
            length = _up(slices[end - 1].end - start)
            yield Enclosing(name, "module" if depth else "step", start, length, end - low)
        yield from _enclosed(slices, low, end, inner)
        low = end


def _common(paths: set[tuple[str, ...]]) -> int:
    """How many parts all paths begin with: those of the first and the last in order."""
    pairs = enumerate(zip(min(paths), max(paths), strict=False))
    return next((index for index, (first, last) in pairs if first != last), min(map(len, paths)))
