"""A run of a suite: gives groups of cases to worker processes, survives their crashes and hangs, collects the results."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dicore.conformance.case_filter import CaseFilter, SelectionError, near_hint
from dicore.conformance.cases import case_id, split_case_id
from dicore.conformance.results import CaseResult, RunReport
from dicore.conformance.suite import Suite, SuiteError, VendorVersion
from dicore.conformance.worker import CaseFinished, CaseStarted, GroupTask, chosen_cases, run_group
from dicore.workers import Done, Lost, Progress, Ready, WorkerPool

__all__ = ["OnProgress", "RunOptions", "run_suite"]

OnProgress = Callable[[CaseResult | None, int, int], None]
"""Told each result (None: a group is done), the groups done and all groups."""

_MAX_WORKERS = 8
# Building the cases of a group, and importing what that needs, may take this much longer than a case may.
_BUILD_SECONDS = 240.0
# A group is given up when its workers die so often between the same two cases.
_MAX_CRASHES_BETWEEN = 2
# Workers that were dead before they took a group.
_MAX_STILLBORN = 3


@dataclass(frozen=True)
class RunOptions:
    """What to run, and how."""

    cases: CaseFilter = field(default_factory=CaseFilter)
    workers: int = 0
    """0: one for each CPU, at most 8."""
    timeout: float = 60.0
    """Seconds that a case may take before its worker is ended."""
    fail_fast: bool = False
    seed: int = 0
    """For the report; the sources have it already."""
    command: tuple[str, ...] = ()
    """As the user would type it again to run one of the cases, without the seed and the id."""
    in_process: bool = False
    """For a debugger: no other process, so a crash ends all and a hang stays."""


def run_suite(suite: Suite, options: RunOptions, on_progress: OnProgress | None = None) -> RunReport:
    """Ends with a report also when it is interrupted.

    SelectionError: a case that does not exist was asked for. SuiteError: what is to be checked cannot be used at all.
    """
    return _Run(suite, options, on_progress).report_of_all()


class _Stopped(Exception):
    """A case failed, and the user wants no more."""


@dataclass
class _GroupProgress:
    """How far a group came."""

    index: int = -1
    """Of the last case that has a result."""
    last: CaseResult | None = None
    running: CaseStarted | None = None
    taken: bool = False
    """A worker has said that it has the task."""
    crashes: int = 0
    """Workers that died in one of its cases."""
    crashes_between: int = 0
    """Workers that died behind the last case, before the next one began."""
    stillborn: int = 0


class _Run:
    def __init__(self, suite: Suite, options: RunOptions, on_progress: OnProgress | None) -> None:
        self._suite = suite
        self._options = options
        self._on_progress = on_progress or (lambda result, done, total: None)
        self._tasks = _tasks(suite, options.cases)
        self._progress: dict[tuple[str, str], _GroupProgress] = {}
        self._done = 0
        self._index_of: dict[str, int] = {}
        self._vendor: VendorVersion | None = None
        self._report = RunReport(
            suite.subject,
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seed=options.seed,
            whole=options.cases.whole and not options.fail_fast and suite.covers_all,
            environment=_environment(suite),
            command=list(options.command),
            suite=suite.name,
        )

    def report_of_all(self) -> RunReport:
        report, wanted = self._report, self._options.cases
        begin = time.perf_counter()
        try:
            if self._options.in_process:
                self._run_here()
            else:
                self._run_in_workers()
        except _Stopped:
            pass
        except KeyboardInterrupt:
            report.interrupted = True
        report.seconds = time.perf_counter() - begin
        if wanted.case is not None and not report.results and not report.interrupted:
            raise SelectionError(_no_such_case(wanted.case, self._suite))
        self._complete()
        return report

    # ---- where cases run ----

    def _run_here(self) -> None:
        self._vendor = self._suite.prepare()
        try:
            for task in self._tasks:
                for message in run_group(self._suite, self._options.cases, task):
                    if isinstance(message, CaseFinished):
                        self._keep(message.result)
                self._group_done()
        finally:
            self._suite.close()

    def _run_in_workers(self) -> None:
        options, suite = self._options, self._suite
        pool = WorkerPool(
            "dicore.conformance.worker:start",
            (suite, options.cases),
            workers=options.workers or min(_MAX_WORKERS, os.cpu_count() or 1),
            timeout=self._timeout,
            environment=suite.environment,
            preload=suite.preload,
        )
        with pool:
            pool.add("", self._tasks)
            for event in pool.run():
                match event:
                    case Ready(facts=vendor):
                        self._vendor = vendor
                    case Progress(task=task, value=message):
                        self._heard(task, message)
                    case Done(task=task, value=None):
                        self._group_done()
                    case Done(task=task, value=first):
                        self._resume(pool, task, first)
                    case Lost(task=None):
                        if self._vendor is None:
                            raise SuiteError(_start_error(event))
                    case Lost():
                        self._lost(pool, event)

    def _timeout(self, task: GroupTask, message: object) -> float:
        building = 0.0 if isinstance(message, CaseStarted) else _BUILD_SECONDS
        return self._options.timeout + building

    # ---- what workers tell ----

    def _of(self, task: GroupTask) -> _GroupProgress:
        return self._progress.setdefault((task.source, task.group), _GroupProgress())

    def _heard(self, task: GroupTask, message: object) -> None:
        progress = self._of(task)
        progress.taken = True
        if isinstance(message, CaseStarted):
            progress.running = message
        elif isinstance(message, CaseFinished):
            self._finished(progress, message.index, message.result)

    def _finished(self, progress: _GroupProgress, index: int, result: CaseResult) -> None:
        progress.index, progress.last, progress.running = index, result, None
        progress.crashes_between = progress.stillborn = 0
        self._keep(result)

    def _resume(self, pool: WorkerPool, task: GroupTask, first: int) -> None:
        self._of(task).taken = False
        pool.add("", [replace(task, first=first)], first=True)

    def _lost(self, pool: WorkerPool, lost: Lost) -> None:
        """A worker died or hung: its case fails, and another worker goes on behind that case."""
        task: GroupTask = lost.task
        progress = self._of(task)
        reason = ": ".join(filter(None, (lost.message, lost.last_words)))
        if lost.cause == "start":
            return self._give_up(task, f"not run: {_start_error(lost)}")
        if not progress.taken and progress.stillborn < _MAX_STILLBORN:
            progress.stillborn += 1
            return self._resume(pool, task, task.first)
        if progress.running is None:
            return self._lost_between(pool, task, reason)
        index, case = progress.running.index, progress.running.case
        progress.crashes += 1
        self._finished(progress, index, case.result("fail", reason))
        if progress.crashes == self._suite.max_crashes:
            return self._abandon(task, progress)
        self._resume(pool, task, index + 1)

    def _lost_between(self, pool: WorkerPool, task: GroupTask, reason: str) -> None:
        """No case was running: the one before may have done it, or the building of the next."""
        progress = self._of(task)
        progress.crashes_between += 1
        last = progress.last
        if progress.crashes_between >= _MAX_CRASHES_BETWEEN:
            after = f"behind {last.id}" if last is not None else "while its cases were built"
            return self._give_up(task, f"{reason} {progress.crashes_between} times {after}")
        self._resume(pool, task, progress.index + 1)
        if last is None:
            self._keep(self._failed_group(task, 0, f"building its cases {reason}"))
            return
        reason = f"after case {last.id}, before the next began: {reason}"
        if last.status == "fail":
            reason = f"{last.reason}; {reason}"
        self._keep(CaseResult(last.id, last.function, last.dtype, last.label, "fail", reason))

    def _give_up(self, task: GroupTask, reason: str) -> None:
        """The rest of a group fails as a whole; its id is the one behind the last case that ran."""
        last = self._of(task).last
        number = 0 if last is None else split_case_id(last.id)[2] + 1
        self._group_done()
        self._keep(self._failed_group(task, number, f"{reason}; from here on the group was not run"))

    def _abandon(self, task: GroupTask, progress: _GroupProgress) -> None:
        """The group ended too many workers. Its cases are listed here: a suite with `max_crashes` builds them when they run."""
        cases = chosen_cases(self._suite.source(task.source), task.group, self._options.cases)
        rest = list(cases)[progress.index + 1 :]
        self._group_done()
        if rest:
            more = f", and {len(rest) - 1} more" if len(rest) > 1 else ""
            reason = f"not run{more}: {task.group} ended {progress.crashes} processes"
            self._keep(rest[0].result("fail", reason))

    def _failed_group(self, task: GroupTask, number: int, reason: str) -> CaseResult:
        last = self._of(task).last
        function = task.group if last is None else last.function
        return CaseResult(case_id(task.source, task.group, number), function, "", "suite", "fail", reason)

    # ---- the report ----

    def _keep(self, result: CaseResult) -> None:
        """One result for each id: a case after which its worker died has failed, whatever it gave before."""
        results = self._report.results
        index = self._index_of.setdefault(result.id, len(results))
        if index == len(results):
            results.append(result)
        elif result.status == "fail":
            results[index] = result
        self._on_progress(result, self._done, len(self._tasks))
        if self._options.fail_fast and result.status == "fail":
            raise _Stopped

    def _group_done(self) -> None:
        self._done += 1
        self._on_progress(None, self._done, len(self._tasks))

    def _complete(self) -> None:
        report, wanted = self._report, self._options.cases
        if self._vendor is not None:
            report.vendor, report.version = self._vendor.vendor, self._vendor.version
        order = {(task.source, task.group): index for index, task in enumerate(self._tasks)}

        def position(result: CaseResult) -> tuple[int, int]:
            source, group, number = split_case_id(result.id)
            return order.get((source, group), -1), number

        report.results.sort(key=position)
        if report.whole:
            report.not_covered = sorted(self._suite.functions() - report.functions())
        elif wanted.functions is not None and not report.interrupted:
            report.not_covered = sorted(wanted.functions - report.functions())


def _start_error(lost: Lost) -> str:
    """Why no worker could be had: what `Suite.prepare` raised, or how the process ended and what it printed last."""
    raised = lost.log.startswith("Traceback")
    told = (lost.message.removeprefix(f"{SuiteError.__name__}: "), "" if raised else lost.last_words)
    return ": ".join(filter(None, told))


# ---- what is asked for ----


def _tasks(suite: Suite, wanted: CaseFilter) -> list[GroupTask]:
    """The groups that hold wanted cases. A quick run takes other sources only for what the first has not."""
    if wanted.case is not None:
        return [_task_of(wanted.case, suite)]
    tasks: list[GroupTask] = []
    functions = wanted.functions
    for number, source in enumerate(suite.sources):
        if number and wanted.quick is not None:
            declared = suite.functions() if wanted.functions is None else wanted.functions
            functions = declared - {task.group for task in tasks}
            if not functions:
                break
        tasks += [GroupTask(source.name, group) for group in source.groups(functions)]
    return tasks


def _task_of(case: str, suite: Suite) -> GroupTask:
    try:
        name, group, _ = split_case_id(case)
    except ValueError as error:
        raise SelectionError(f"{error}; cases look like {suite.example_case}") from None
    if name not in {source.name for source in suite.sources}:
        raise SelectionError(f"the case {case} is of the source {name!r}, which is not there")
    groups = suite.source(name).groups(None)
    if group not in groups:
        hint = near_hint(group, groups)
        raise SelectionError(f"there is no case {case}: the source {name!r} has no group {group!r}{hint}")
    return GroupTask(name, group)


def _no_such_case(case: str, suite: Suite) -> str:
    """Names what the group has instead."""
    name, group, _ = split_case_id(case)
    numbers = [split_case_id(each.id)[2] for each in suite.source(name).cases(group)]
    has = f"numbers from {min(numbers)} to {max(numbers)}" if numbers else "no case"
    return f"there is no case {case}: {name}:{group} has {has}"


def _environment(suite: Suite) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        **suite.versions(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": os.cpu_count() or 0,
    }
