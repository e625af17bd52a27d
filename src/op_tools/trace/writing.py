"""Writes slices in Chrome's trace format, event by event, so that the text of a long run is never held as a whole."""

from __future__ import annotations

import gzip
import itertools
import stat
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from dicore.files import replaced
from op_tools.runs import NOTHING, BadInput, Run, kind_of_path
from op_tools.trace.layout import Enclosing, Track, enclosed, lay_out
from op_tools.trace.reading import FORWARD, Process, Slice, Timed, read_run

Event = dict[str, Any]
_BATCH = 4096


@dataclass
class TraceSummary:
    """What a trace has in it."""

    path: str
    bytes: int
    processes: int
    rows: int
    slices: int
    flows: int
    without_start: int
    without_time: int
    older_logs: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def write_trace(run: Run, path: Path, steps: Container[int] | None = None) -> TraceSummary:
    """Write the trace of a run, or of some steps; compressed if the name ends with .gz. Raises BadInput."""
    if not path.name or stat.S_ISDIR(kind_of_path(path)):
        raise BadInput(f"{path} is a folder. Give the file to write, for example {path / 'trace.json'}.")
    timed = read_run(run, steps)
    _require(run, timed, steps is not None)
    origin = timed.origin()
    counted = (len(timed.processes), timed.rows, 0, 0, timed.without_start, timed.without_time)
    written = TraceSummary(str(path), 0, *counted, run.older)
    origin_us = origin / 1000
    other = {"made_by": "op-tools trace", "run": str(run.path), "origin_us": origin_us, "rows": timed.rows}
    try:
        with replaced(path) as temporary, _open(temporary, path.name.endswith(".gz")) as file:
            _write(file, _all_events(timed, origin, written), other)
        written.bytes = path.stat().st_size
    except OSError as error:
        why = error.strerror or error
        raise BadInput(f"{path} cannot be written: {why}. Choose another file with -o.") from None
    return written


def _require(run: Run, timed: Timed, selected: bool) -> None:
    if any(process.slices or process.counters for process in timed.processes):
        return
    if timed.rows:
        raise BadInput(
            f"{run.path}: none of the {timed.rows} measured calls says when it started. They were written by an older "
            "op_tools; measure again.",
            NOTHING,
        )
    if selected and run.has("time_measure"):
        raise BadInput(f"{run.path} holds no measured calls of these steps. Steps count from 0.", NOTHING)
    raise BadInput(
        f"{run.path} holds no measured calls: no log of OpTimeMeasure with rows in it. Measure with "
        "`ditorch run script.py --tool time` or op_tools.OpTimeMeasure().",
        NOTHING,
    )


def _open(path: Path, compressed: bool) -> IO[bytes]:
    return gzip.open(path, "wb", compresslevel=5) if compressed else path.open("wb")  # type: ignore[return-value]


def _write(file: IO[bytes], events: Iterator[Event], other: dict[str, Any]) -> None:
    encode = msgspec.json.Encoder().encode
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    between = b""
    while batch := list(itertools.islice(events, _BATCH)):
        file.write(between + b",\n".join(map(encode, batch)))
        between = b",\n"
    file.write(b'\n],"otherData":' + encode(other) + b"}\n")


def _all_events(timed: Timed, origin: int, written: TraceSummary) -> Iterator[Event]:
    flows = itertools.count(1)
    taken: set[int] = set()
    for process in timed.processes:
        number = _free_number(process, taken)
        yield _named("process_name", number, 0, name=_process_name(process))
        yield _named("process_sort_index", number, 0, sort_index=process.rank)
        for thread, track in enumerate(lay_out(process, flows), 1):
            yield _named("thread_name", number, thread, name=track.name)
            yield _named("thread_sort_index", number, thread, sort_index=thread)
            yield from _track_events(track, number, thread, origin, written)
        for time, name, value in process.counters:
            yield _event("C", number, 0, (time - origin) / 1000, name=name, args={"bytes": value})


def _free_number(process: Process, taken: set[int]) -> int:
    """The rank where there are several, else the process's own number; two runs in a folder must not share one."""
    number = process.rank if process.world_size > 1 else process.pid
    while number in taken:
        number += 10_000_000
    taken.add(number)
    return number


def _process_name(process: Process) -> str:
    host = f", {process.host}" if process.host else ""
    return f"rank {process.rank} (pid {process.pid}{host})"


def _track_events(track: Track, pid: int, tid: int, origin: int, written: TraceSummary) -> Iterator[Event]:
    for piece in enclosed(track.slices):
        time, length = (piece.start - origin) / 1000, piece.length / 1000
        if isinstance(piece, Enclosing):
            args: dict[str, Any] = {"calls": piece.calls}
            yield _event("X", pid, tid, time, name=piece.name, cat=piece.kind, dur=length, args=args)
            continue
        written.slices += 1
        args = _arguments(piece)
        yield _event("X", pid, tid, time, name=piece.facts.name, cat=piece.kind, dur=length, args=args)
        if piece.flow:
            # Behind the slice and at its start, so that readers tie it to this slice and no other.
            leaves = piece.kind == FORWARD
            written.flows += leaves
            flow = {"name": "backward", "cat": "flow", "id": piece.flow} | ({} if leaves else {"bp": "e"})
            yield _event("s" if leaves else "f", pid, tid, time, **flow)


def _arguments(piece: Slice) -> dict[str, Any]:
    facts = piece.facts
    args: dict[str, Any] = {
        "forward_id": facts.forward_id, "call_site": facts.call_site, "module": facts.module, "step": facts.step,
        "inputs": facts.inputs, "outputs": facts.outputs,
    }  # fmt: skip
    if piece.kind != FORWARD and (facts.grad_inputs or facts.grad_outputs):
        args |= {"grad_outputs": facts.grad_outputs, "grad_inputs": facts.grad_inputs}
    return args


def _event(ph: str, pid: int, tid: int, ts: float, **rest: Any) -> Event:
    return {"ph": ph, "pid": pid, "tid": tid, "ts": ts, **rest}


def _named(kind: str, pid: int, tid: int, **args: Any) -> Event:
    return _event("M", pid, tid, 0, name=kind, args=args)
