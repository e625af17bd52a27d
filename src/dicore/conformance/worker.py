"""A worker of a run: builds the cases of a group one after the other, runs each and tells what came of it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dicore.conformance.case_filter import CaseFilter
from dicore.conformance.cases import Case, CaseSource, DecidedCase, case_id, split_case_id
from dicore.conformance.results import CaseResult
from dicore.conformance.suite import Suite
from dicore.workers import Retire, Service

__all__ = ["CaseFinished", "CaseStarted", "GroupStarted", "GroupTask", "chosen_cases", "run_group", "start"]

# So many errors in a row, and a source is not asked for more.
_MAX_ERRORS = 100


@dataclass(frozen=True)
class GroupTask:
    """The chosen cases of a group, from an index on."""

    source: str
    group: str
    first: int = 0


@dataclass(frozen=True)
class GroupStarted:
    """The worker has the task."""


@dataclass(frozen=True)
class CaseStarted:
    """The case at an index is about to run."""

    index: int
    case: Case


@dataclass(frozen=True)
class CaseFinished:
    """The case at an index was run, or came to nothing without."""

    index: int
    result: CaseResult


Message = GroupStarted | CaseStarted | CaseFinished


def start(group: str, setup: tuple[Suite, CaseFilter]) -> Service:
    """The entry point of the process."""
    suite, wanted = setup
    facts = suite.prepare()
    return Service(lambda task: _answer(suite, wanted, task), facts, suite.close)


def _answer(suite: Suite, wanted: CaseFilter, task: GroupTask) -> Generator[Message, None, Any]:
    """The messages of a task; at its end the index to go on from, None if the group is done."""
    yield GroupStarted()
    for message in run_group(suite, wanted, task):
        yield message
        if isinstance(message, CaseFinished) and not suite.worker_usable(message.result):
            return Retire(message.index + 1)
    return None


def run_group(suite: Suite, wanted: CaseFilter, task: GroupTask) -> Iterator[CaseStarted | CaseFinished]:
    """Runs the cases that are wanted."""
    for index, case in enumerate(chosen_cases(suite.source(task.source), task.group, wanted)):
        if index < task.first:
            continue
        if case.outcome is not None:
            yield CaseFinished(index, case.result(*case.outcome))
        elif (reason := wanted.skip_reason(case)) is not None:
            yield CaseFinished(index, case.result("skipped", reason))
        else:
            # Arguments stay here: they may be large, and the other end only wants to know which case it is.
            yield CaseStarted(index, Case(case.id, case.function, case.dtype, case.label))
            yield CaseFinished(index, _run(suite, case))


def _run(suite: Suite, case: Case) -> CaseResult:
    """Where the suite itself is wrong, that is a failure of the case too."""
    try:
        return suite.run(case)
    except Exception as error:
        return case.result("fail", _raised(error))


def _raised(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    location = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"the suite raised {type(error).__name__}: {str(error).strip()[:300]} ({location})"


# ---- which cases ----


def chosen_cases(source: CaseSource, group: str, wanted: CaseFilter) -> Iterator[Case]:
    """The wanted cases of a group, with `quick` an even choice of them; and failures where the source raised."""
    found = _wanted_cases(source, group, wanted)
    if wanted.quick is None:
        yield from found
        return
    cases = list(found)
    built = [case for case in cases if not isinstance(case, _UnbuiltCase)]
    yield from (built[index] for index in evenly(len(built), wanted.quick))
    yield from (case for case in cases if isinstance(case, _UnbuiltCase))


def evenly(total: int, wanted: int) -> list[int]:
    """So many indices below `total`, at even distances, the first and the last included."""
    wanted = min(total, wanted)
    return [round(step * (total - 1) / max(1, wanted - 1)) for step in range(wanted)]


def _wanted_cases(source: CaseSource, group: str, wanted: CaseFilter) -> Iterator[Case]:
    unbuilt: list[Case] = []
    for case in _built_cases(source, group):
        if isinstance(case, _UnbuiltCase) and wanted.case not in (None, case.id):
            unbuilt.append(case)  # of interest only if the one case is not found
        elif isinstance(case, _UnbuiltCase) or wanted.wants(case):
            yield case
            if case.id == wanted.case:
                return
    yield from unbuilt


@dataclass(frozen=True, slots=True)
class _UnbuiltCase(DecidedCase):
    """The source raised instead of giving a case."""


def _built_cases(source: CaseSource, group: str) -> Iterator[Case]:
    """All that the source can build. Behind an error it is asked again; a generator has ended then."""
    number, function, errors = 0, group, 0
    unbuilt: _UnbuiltCase | None = None
    cases: Iterator[Case] | None = None
    while errors < _MAX_ERRORS:
        try:
            cases = iter(source.cases(group)) if cases is None else cases
            case = next(cases, None)
        except Exception as error:
            if unbuilt is not None:
                yield unbuilt
            unbuilt = _UnbuiltCase(
                case_id(source.name, group, number), function, "", "suite", _raised(error), "fail"
            )
            number, errors = number + 1, errors + 1
            if cases is None:
                break
            continue
        if case is None:
            break
        if unbuilt is not None:
            yield unbuilt
            unbuilt = None
        number, function, errors = split_case_id(case.id)[2] + 1, case.function, 0
        yield case
    if unbuilt is not None:
        yield replace(unbuilt, reason=f"{unbuilt.reason}; from {unbuilt.id} on nothing was run")
