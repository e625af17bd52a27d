"""Logs of many ranks become one summary: each rank's are read once, in processes here or on a Ray cluster, then added up.

What a rank's logs come to is kept beside them, so that a second report reads only what has changed.
"""

from __future__ import annotations

import base64
import functools
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dicore.executors import ExecutorError, run_payloads
from dicore.files import write_bytes
from dicore.page import asset
from op_tools.report.rows import in_order_of_interest
from op_tools.report.scan import LogFile, scan
from op_tools.report.summary import NO_RANK, LogLine, RunSummary
from op_tools.runs import DERIVED_LOGS, BadInput, Run
from op_tools.storage.csv_reader import header_in_name
from op_tools.storage.errors import CaptureError
from op_tools.storage.log import SUFFIX
from op_tools.storage.log_reader import read_header

__all__ = ["Part", "merged", "parts_of", "summary_of_parts"]

_FUNCTION = "op_tools.report.merge:summary_of_parts"
# What a summary holds and how it is counted: by the text of these files, so that no change of them is forgotten.
_MAKERS = ("facts.py", "rows.py", "scan.py", "summary.py")
_CACHE_FOLDER = ".summaries"
# What one task reads, so that its result is worth its way and a lost worker costs little.
_TASK_BYTES = 64 << 20
_TASKS_PER_WORKER = 8
_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Part:
    """The logs of one rank, or of one process of a run without ranks: what is summarised at a time."""

    logs: tuple[LogFile, ...]
    order: tuple[Any, ...]
    size: int  # bytes

    def as_plain(self) -> list[list[str | None]]:
        return [list(log) for log in self.logs]


def parts_of(runs: Sequence[Run]) -> list[Part]:
    """The logs of the runs by rank. Of what is made from captures afterwards the newest log counts."""
    found: dict[tuple[Any, ...], list[LogFile]] = {}
    ages: dict[tuple[Any, ...], str] = {}
    for run in runs:
        captures = str(run.captures) if run.captures is not None else None
        for tool in in_order_of_interest(run.logs):
            paths = run.logs[tool][-1:] if tool in DERIVED_LOGS else run.logs[tool]
            for path in paths:
                key = _owner(tool, path)
                found.setdefault(key, []).append(LogFile(tool, str(path), captures))
                ages.setdefault(key, path.name.partition("pid")[2].partition("_")[2])
    parts = [
        Part(tuple(logs), (*key[:2], ages[key], *key[2:]), sum(_status(log.path)[0] for log in logs))
        for key, logs in found.items()
    ]
    return sorted(parts, key=lambda part: part.order)


def _owner(tool: str, path: Path) -> tuple[Any, ...]:
    if tool in DERIVED_LOGS:
        return 2, 0, tool, 0
    try:
        header = read_header(path) if path.suffix == SUFFIX else {}
    except (CaptureError, OSError):
        header = {}  # who reads its rows says what is wrong
    header = header or header_in_name(path.name)
    rank, size, pid = header.get("rank"), header.get("world_size"), header.get("pid")
    if isinstance(rank, int) and isinstance(size, int) and size > 1:
        return 0, rank, "", 0
    return 1, 0, str(header.get("host")), pid if isinstance(pid, int) else 0


# -- in workers ---------------------------------------------------------------------------------------------------


def merged(
    parts: Sequence[Part],
    *,
    workers: int,
    ray: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RunSummary:
    """One summary of all parts. A part that no process could read is a log that could not be read, and the rest counts."""
    summary = RunSummary()
    tasks = _tasks(parts, workers)
    done = 0
    while tasks:
        again: list[list[Part]] = []
        payloads = [
            ({"parts": [part.as_plain() for part in task]}, sum(part.size for part in task)) for task in tasks
        ]
        needs = sorted({str(Path(log.path).parent) for part in parts for log in part.logs})
        try:
            for index, result in run_payloads(
                _FUNCTION, payloads, workers=workers, ray=ray, timeout=_TIMEOUT, needs=needs
            ):
                task = tasks[index]
                if "error" not in result:
                    summary.merge(_unpacked(base64.b64decode(result["summary"])))
                elif len(task) > 1:
                    again += [[part] for part in task]  # the others are not to blame
                    continue
                else:
                    summary.merge(_unread(task[0], str(result["error"])))
                done += len(task)
                if progress is not None:
                    progress(done, len(parts))
        except ExecutorError as error:
            raise BadInput(str(error)) from error
        tasks = again
    return summary


def _tasks(parts: Sequence[Part], workers: int) -> list[list[Part]]:
    """Neighbours together, as long as every worker has several tasks."""
    most = min(_TASK_BYTES, sum(part.size for part in parts) // (_TASKS_PER_WORKER * max(1, workers)))
    tasks: list[list[Part]] = []
    filled = most
    for part in parts:
        if filled >= most:
            tasks.append([])
            filled = 0
        tasks[-1].append(part)
        filled += part.size
    return tasks


def _unread(part: Part, why: str) -> RunSummary:
    lines = [
        LogLine(log.tool, header_in_name(name).get("rank", NO_RANK), "", name, "", 0, 0, 0, 0, why, 1)
        for log in part.logs
        for name in [Path(log.path).name]
    ]
    return RunSummary(logs=sorted(lines))


def summary_of_parts(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What runs in a worker: parts as plain data in, their summary as text out."""
    summary = RunSummary()
    for logs in payload["parts"]:
        summary.merge(_summary_of([LogFile(*log) for log in logs]))
    return {"summary": base64.b64encode(_packed(summary)).decode("ascii")}


def _packed(summary: Any) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(summary, enc_hook=str), 1)


def _unpacked(content: bytes) -> RunSummary:
    return msgspec.msgpack.decode(zlib.decompress(content), type=RunSummary)


# -- kept beside the logs -------------------------------------------------------------------------------------------


class _Cached(msgspec.Struct):
    format: int  # other ones are of another version
    logs: list[tuple[str, str, str | None, int, int]]
    summary: RunSummary


def _summary_of(logs: Sequence[LogFile]) -> RunSummary:
    """The summary of one part: the one beside its logs if they are as they were, else made and left there."""
    before = [(*log, *_status(log.path)) for log in logs]
    path = _cache_path(logs)
    try:
        cached = msgspec.msgpack.decode(zlib.decompress(path.read_bytes()), type=_Cached)
        if cached.format == _format() and cached.logs == before:
            return cached.summary
    except (OSError, zlib.error, msgspec.DecodeError, RecursionError):
        pass  # none, or of another version, or damaged
    summary = scan(logs)
    if not any(line.problem for line in summary.logs):
        try:
            path.parent.mkdir(exist_ok=True)
            write_bytes(path, _packed(_Cached(_format(), before, summary)))
        except OSError:
            pass  # a folder that is only to be read: the next report reads the logs again
    return summary


@functools.cache
def _format() -> int:
    return zlib.crc32("".join(asset("op_tools.report", name) for name in _MAKERS).encode())


def _cache_path(logs: Sequence[LogFile]) -> Path:
    first = Path(logs[0].path)
    return first.parent / _CACHE_FOLDER / f"{first.stem}.summary"


def _status(path: str) -> tuple[int, int]:
    """Size and time of the last change."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
