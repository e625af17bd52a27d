"""A worker process: opens the library, builds the cases of a group, runs each and tells what came of it.

This module is imported first of all in the process that workers are forked from, so torch is loaded there as `alone` says.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from diopi.conformance.alone import torch
from diopi.conformance.case import Case
from diopi.conformance.judging import check
from diopi.conformance.results import Result
from diopi.conformance.selection import Selection
from diopi.conformance.source import Source, case_id, parted
from diopi.library import Library, LibraryError
from diopi.settings import ADAPTOR_REPORT
from diopi.table import Table, load

# So many errors in a row, and a source is not asked for more.
_MOST_ERRORS = 100


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
    """The case at a position of the group was run; None: the whole group."""

    result: Result | None
    position: int = -1


@dataclass(frozen=True)
class Unbuilt:
    """A place of a group where the source raised instead of giving a case."""

    id: str
    function: str
    reason: str


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
    report = ADAPTOR_REPORT.get()
    if opened.adaptor is not None and report:
        with suppress(
            OSError
        ):  # it could be written when the library was opened; since then only figures are lost
            opened.adaptor.save(Path(report))
    os._exit(0)  # a vendor's library may not survive its own destructors; nothing here needs them


def _run(connection: Connection, library: Library, source: Source, task: Task, selection: Selection) -> None:
    table = load()
    for position, item in enumerate(chosen(source, task.group, selection)):
        if position < task.start:
            continue
        if isinstance(item, Unbuilt):
            connection.send(Finished(_failed(item), position))
            continue
        reason = selection.skipped(item)
        if reason is not None:
            skipped = Result(item.id, item.function, item.dtype, item.label, "skipped", reason)
            connection.send(Finished(skipped, position))
            continue
        connection.send(Started(position, item.id, item.function, item.dtype, item.label))
        connection.send(Finished(_checked(library, table, item), position))


def _failed(item: Unbuilt) -> Result:
    return Result(item.id, item.function, "", "suite", "fail", item.reason)


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


def chosen(source: Source, group: str, selection: Selection) -> Iterator[Case | Unbuilt]:
    """The wanted cases of a group, with `quick` an even choice of them; and where the source raised."""
    wanted = _wanted(source, group, selection)
    if selection.quick is None:
        yield from wanted
        return
    items = list(wanted)
    listed = [item for item in items if not isinstance(item, Unbuilt)]
    count = min(selection.quick, len(listed))
    yield from (listed[round(number * (len(listed) - 1) / max(1, count - 1))] for number in range(count))
    yield from (item for item in items if isinstance(item, Unbuilt))


def _wanted(source: Source, group: str, selection: Selection) -> Iterator[Case | Unbuilt]:
    held: list[Unbuilt] = []
    for item in _built(source, group):
        if isinstance(item, Unbuilt) and selection.case not in (None, item.id):
            held.append(item)  # of interest only if the one case is not found
        elif isinstance(item, Unbuilt) or selection.wants(item):
            yield item
            if item.id == selection.case:
                return
    yield from held


def _built(source: Source, group: str) -> Iterator[Case | Unbuilt]:
    """All that the source can build. Behind an error it is asked again; a generator has ended then."""
    number, function, errors = 0, group, 0
    unbuilt: Unbuilt | None = None
    cases: Iterator[Case] | None = None
    while errors < _MOST_ERRORS:
        try:
            cases = iter(source.cases(group)) if cases is None else cases
            case = next(cases, None)
        except Exception as error:
            if unbuilt is not None:
                yield unbuilt
            name = group if group.startswith("diopi") else function
            unbuilt = Unbuilt(case_id(source.name, group, number), name, _raised(error))
            number, errors = number + 1, errors + 1
            if cases is None:
                break
            continue
        if case is None:
            break
        if unbuilt is not None:
            yield unbuilt
            unbuilt = None
        number, function, errors = parted(case.id)[2] + 1, case.function, 0
        yield case
    if unbuilt is not None:
        yield replace(unbuilt, reason=f"{unbuilt.reason}; from {unbuilt.id} on nothing was run")
