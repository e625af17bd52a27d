"""A run of the suite: what it is asked, what it finds."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diopi.conformance.results import Result, Status
from diopi.conformance.selection import Selection, SelectionError, operators
from diopi.conformance.source import Source, parted
from diopi.conformance.worker import Ready, Task
from diopi.library.wording import nearest
from diopi.table import load

QUICK_CASES = 8
DEFAULT_TIMEOUT = 60.0
_MOST_WORKERS = 8


@dataclass
class Request:
    """What to run against which library."""

    library: Path
    selection: Selection
    sources: list[Source]
    workers: int = 0
    """0: one for each CPU, at most 8."""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds that a case may take before its worker is ended."""
    fail_fast: bool = False
    seed: int = 0
    command: tuple[str, ...] = ("diopi", "conformance")
    """As the user would type it again to run one of its cases, without the seed and the id."""


@dataclass
class Report:
    """All that a run found."""

    library: str
    vendor: str = ""
    version: str = ""
    started: str = ""
    seconds: float = 0.0
    seed: int = 0
    results: list[Result] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)
    interrupted: bool = False
    whole: bool = False
    """Every operator was asked for, so one without a case is a failure of the suite."""
    environment: dict[str, Any] = field(default_factory=dict)
    command: list[str] = field(default_factory=lambda: ["diopi", "conformance"])
    """What `Request.command` was."""
    suite: str = "diopi"
    """Whose operators were checked; files say it."""

    def counts(self) -> Counter[Status]:
        return Counter(result.status for result in self.results)

    def failures(self) -> list[Result]:
        return [result for result in self.results if result.status == "fail"]

    @property
    def exit_code(self) -> int:
        """0 ok, 1 failures, 5 nothing ran, 130 interrupted."""
        counts = self.counts()
        if self.interrupted:
            return 130
        if counts["fail"] or (self.whole and self.not_covered):
            return 1
        return 0 if counts["pass"] else 5


def tasks_for(request: Request) -> list[Task]:
    """The groups that hold wanted cases. A quick run takes other sources only for what the first has not."""
    selection = request.selection
    if selection.case is not None:
        return [_task_of(selection.case, request.sources)]
    tasks: list[Task] = []
    wanted = selection.functions
    for number, source in enumerate(request.sources):
        if number and selection.quick is not None:
            known = operators(load()) if selection.functions is None else selection.functions
            wanted = known - {task.group for task in tasks}
            if not wanted:
                break
        tasks += [Task(source.name, group) for group in source.groups(wanted)]
    return tasks


def _task_of(case: str, sources: Sequence[Source]) -> Task:
    try:
        source, group, _ = parted(case)
    except ValueError as error:
        raise SelectionError(str(error)) from None
    found = next((s for s in sources if s.name == source), None)
    if found is None:
        raise SelectionError(f"the case {case} is of the source {source!r}, which is not there")
    groups = found.groups(None)
    if group not in groups:
        near = nearest(group, groups)
        hint = f"; near are {', '.join(near)}" if near else ""
        raise SelectionError(f"there is no case {case}: the source {source!r} has no group {group!r}{hint}")
    return Task(source, group)


def _no_case(case: str, sources: Mapping[str, Source]) -> str:
    """Names what the group has instead."""
    name, group, _ = parted(case)
    numbers = [parted(each.id)[2] for each in sources[name].cases(group)]
    has = f"numbers from {min(numbers)} to {max(numbers)}" if numbers else "no case"
    return f"there is no case {case}: {name}:{group} has {has}"


class Runner:
    """Runs a request; `progress` is told (cases done, groups done, groups in all) now and then."""

    def __init__(
        self, request: Request, progress: Callable[[Result | None, int, int], None] | None = None
    ) -> None:
        self._request = request
        self._progress = progress
        self._tasks = tasks_for(request)
        self._done = 0
        self._places: dict[str, int] = {}
        selection = request.selection
        self.report = Report(
            str(request.library),
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seed=request.seed,
            whole=selection.whole and not request.fail_fast and "own" in {s.name for s in request.sources},
            environment=environment(),
            command=list(request.command),
        )

    def run(self) -> Report:
        """Ends with a report also when it is interrupted. SelectionError: the one case that is wanted does not exist."""
        from diopi.conformance.pool import Pool

        request, report = self._request, self.report
        begin = time.perf_counter()
        sources = {source.name: source for source in request.sources}
        pool = Pool(
            str(request.library),
            sources,
            request.selection,
            count=request.workers or min(_MOST_WORKERS, os.cpu_count() or 1),
            timeout=request.timeout,
        )
        try:
            pool.run(self._tasks, self._result, self._finished)
        except KeyboardInterrupt:
            report.interrupted = True
        report.seconds = time.perf_counter() - begin
        if request.selection.case is not None and not report.results and not report.interrupted:
            raise SelectionError(_no_case(request.selection.case, sources))
        self._complete(pool.vendor)
        return report

    def _result(self, result: Result) -> bool:
        self._keep(result)
        if self._progress is not None:
            self._progress(result, self._done, len(self._tasks))
        return not (self._request.fail_fast and result.status == "fail")

    def _keep(self, result: Result) -> None:
        """One result for each id: a case after which its process died has failed, whatever it gave before."""
        results = self.report.results
        known = self._places.setdefault(result.id, len(results))
        if known == len(results):
            results.append(result)
        elif result.status == "fail":
            results[known] = result

    def _finished(self, task: Task) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(None, self._done, len(self._tasks))

    def _complete(self, vendor: Ready | None) -> None:
        report = self.report
        if vendor is not None:
            report.vendor, report.version = vendor.vendor, vendor.version
        order = {(task.source, task.group): number for number, task in enumerate(self._tasks)}

        def place(result: Result) -> tuple[int, int]:
            source, group, number = parted(result.id)
            return order.get((source, group), -1), number

        report.results.sort(key=place)
        met = {result.function for result in report.results}
        if report.whole:
            report.not_covered = sorted(operators(load()) - met)
        elif self._request.selection.functions is not None and not report.interrupted:
            report.not_covered = sorted(self._request.selection.functions - met)


def environment() -> dict[str, Any]:
    """Where a run took place."""
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": os.cpu_count() or 0,
    }
