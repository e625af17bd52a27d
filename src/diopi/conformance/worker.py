"""A worker process: opens the library, builds the cases of a group, runs each and tells what came of it.

This module is imported first of all in the process that workers are forked from, so torch is loaded there as `alone` says.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from diopi.conformance.alone import torch
from diopi.conformance.case import Case
from diopi.conformance.judging import check
from diopi.conformance.results import Result
from diopi.conformance.selection import Selection
from diopi.conformance.source import Source, case_id
from diopi.library import Library, LibraryError
from diopi.table import Table, load


@dataclass(frozen=True)
class Task:
    """The cases of a group, from a position on."""

    source: str
    group: str
    start: int = 0


@dataclass(frozen=True)
class Ready:
    """The library is open."""

    vendor: str
    version: str


@dataclass(frozen=True)
class Fatal:
    """The library cannot be used."""

    reason: str


@dataclass(frozen=True)
class Started:
    """The case at a position of the group is about to run."""

    position: int
    id: str
    function: str
    dtype: str
    label: str


@dataclass(frozen=True)
class Finished:
    """A case was run; None: the whole group."""

    result: Result | None


def serve(
    connection: Connection, library: str, sources: Mapping[str, Source], selection: Selection, log: str
) -> None:
    """The process: answers tasks until it is sent None. What the library prints goes to the file `log`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides what Ctrl-C means
    printed = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    torch.set_num_threads(1)
    torch.set_warn_always(False)
    try:
        opened = Library.open(library)
    except LibraryError as error:
        connection.send(Fatal(str(error)))
        return
    connection.send(Ready(opened.vendor, opened.version))
    while (task := connection.recv()) is not None:
        os.ftruncate(printed, 0)
        _run(connection, opened, sources[task.source], task, selection)
        connection.send(Finished(None))
    connection.close()
    report = os.environ.get("DIOPI_ADAPTOR_REPORT")
    if opened.adaptor is not None and report:
        opened.adaptor.save(Path(report))
    os._exit(0)  # a vendor's library may not survive its own destructors; nothing here needs them


def _run(connection: Connection, library: Library, source: Source, task: Task, selection: Selection) -> None:
    table = load()
    position = -1
    try:
        for position, case in enumerate(chosen(source, task.group, selection)):
            if position < task.start:
                continue
            reason = selection.skipped(case)
            if reason is not None:
                skipped = Result(case.id, case.function, case.dtype, case.label, "skipped", reason)
                connection.send(Finished(skipped))
                continue
            connection.send(Started(position, case.id, case.function, case.dtype, case.label))
            connection.send(Finished(_checked(library, table, case)))
    except Exception as error:
        function = task.group if task.group.startswith("diopi") else ""
        identity = case_id(task.source, task.group, position + 1)
        connection.send(Finished(Result(identity, function, "", "suite", "fail", _raised(error))))


def _checked(library: Library, table: Table, case: Case) -> Result:
    """Where the suite itself is wrong, that is a failure of the case too."""
    try:
        return check(library, table, case)
    except Exception as error:
        return Result(case.id, case.function, case.dtype, case.label, "fail", _raised(error))


def _raised(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno}"
    return f"the suite raised {type(error).__name__}: {str(error).strip()[:300]} ({where})"


def chosen(source: Source, group: str, selection: Selection) -> Iterator[Case]:
    """The wanted cases of a group; with `quick` an even choice of them."""
    wanted = (case for case in source.cases(group) if selection.wants(case))
    if selection.quick is None:
        yield from wanted
        return
    listed = list(wanted)
    count = min(selection.quick, len(listed))
    yield from (listed[round(number * (len(listed) - 1) / max(1, count - 1))] for number in range(count))
