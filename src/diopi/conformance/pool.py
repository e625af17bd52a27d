"""The worker processes of a run: gives out groups, survives crashes and hangs, ends cleanly."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from diopi.conformance.endings import ending, last_words
from diopi.conformance.results import Result
from diopi.conformance.selection import Selection
from diopi.conformance.source import Source, case_id, parted
from diopi.conformance.worker import Fatal, Finished, Ready, Started, Task, serve

# Building the cases of a group, and importing what that needs, may take this much longer than a case may.
_BUILDING = 240.0
_TICK = 0.5
# A group is given up when its process dies at one place so often, the run when so many workers in a row are of no use.
_MOST_CRASHES = 2
_MOST_USELESS = 3


class PoolError(RuntimeError):
    """The library cannot be used at all."""


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    log: Path
    task: Task | None = None
    started: Started | None = None
    ready: bool = False
    dismissed: bool = False
    """It was told that there is no more to do, and leaves."""
    heard: float = 0.0


@dataclass
class _Progress:
    """How far a group came."""

    position: int = -1
    """Of the last case that has a result."""
    last: Result | None = None
    crashes: int = 0
    """Times that a process died behind that case, before the next one began."""


class Pool:
    """Runs tasks in `count` processes that each hold the library."""

    def __init__(
        self,
        library: str,
        sources: Mapping[str, Source],
        selection: Selection,
        *,
        count: int,
        timeout: float,
    ) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["diopi.conformance.worker"])
        self._arguments = (library, dict(sources), selection)
        self._count = count
        self._timeout = timeout
        self._workers: list[_Worker] = []
        self._tasks: deque[Task] = deque()
        self._progress: dict[tuple[str, str], _Progress] = {}
        self._folder = Path()
        self._started = 0
        self._useless = 0
        """Workers in a row that were lost before they took a group."""
        self._why = ""
        """What became of the last of them."""
        self._result: Callable[[Result], bool] = lambda _: True
        self._finished: Callable[[Task], None] = lambda _: None
        self.vendor: Ready | None = None

    def run(
        self, tasks: Iterable[Task], result: Callable[[Result], bool], finished: Callable[[Task], None]
    ) -> None:
        """Calls `result` for each case, which says whether to go on, and `finished` after each group.

        PoolError: no worker could open the library. Once one could, whatever happens is a result.
        """
        self._tasks = deque(tasks)
        self._result, self._finished = result, finished
        with tempfile.TemporaryDirectory(prefix="diopi-conformance-") as folder:
            self._folder = Path(folder)
            self._run()

    def _run(self) -> None:
        try:
            for _ in range(min(self._count, len(self._tasks))):
                self._start()
            while any(worker.task is not None or not worker.ready for worker in self._workers):
                if not self._step():
                    return
            while self._tasks:
                if not self._given_up(self._tasks.popleft(), f"not run: {self._why}"):
                    return
        finally:
            self._end()

    def _step(self) -> bool:
        by_connection = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(by_connection), _TICK):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                message = None
            if not (self._lost(worker) if message is None else self._heard(worker, message)):
                return False
        return all(self._lost(worker, hung=True) for worker in self._hung())

    def _heard(self, worker: _Worker, message: object) -> bool:
        worker.heard = time.monotonic()
        match message:
            case Fatal(reason):
                return self._lost(worker, reason=reason)
            case Ready():
                worker.ready, self.vendor = True, message
                return self._give(worker)
            case Started():
                worker.started = message
            case Finished(None):
                assert worker.task is not None
                self._finished(worker.task)
                return self._give(worker)
            case Finished(found, position) if found is not None:
                assert worker.task is not None
                worker.started = None
                self._useless = 0
                self._progress[worker.task.source, worker.task.group] = _Progress(position, found)
                return self._result(found)
        return True

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        self._started += 1
        log = self._folder / f"worker-{self._started}.log"
        process = self._context.Process(target=serve, args=(theirs, *self._arguments, str(log)), daemon=True)
        try:
            process.start()
        except (EOFError, OSError) as error:
            ours.close()
            theirs.close()
            self._why = f"no process could be started: {error}"
            if self.vendor is None:
                raise PoolError(self._why) from error
            return
        theirs.close()
        self._workers.append(_Worker(process, ours, log, heard=time.monotonic()))

    def _give(self, worker: _Worker) -> bool:
        worker.started = None
        task = self._tasks.popleft() if self._tasks else None
        try:
            worker.connection.send(task)
        except OSError:  # it died meanwhile
            worker.task = None
            if task is not None:
                self._tasks.appendleft(task)
            return self._lost(worker)
        worker.task, worker.dismissed = task, task is None
        return True

    def _limit(self, worker: _Worker) -> float:
        return self._timeout if worker.started else self._timeout + _BUILDING

    def _hung(self) -> list[_Worker]:
        now = time.monotonic()
        return [
            worker
            for worker in self._workers
            if (worker.task is not None or not worker.ready) and now - worker.heard > self._limit(worker)
        ]

    def _lost(self, worker: _Worker, *, hung: bool = False, reason: str = "") -> bool:
        """A worker died, or does not answer: its case fails, another worker goes on behind that case."""
        self._workers.remove(worker)
        if hung:
            worker.process.kill()
        worker.process.join(5)
        worker.connection.close()
        if worker.dismissed:
            return True
        how = f"no answer within {self._limit(worker):g} s" if hung else ending(worker.process.exitcode)
        how += last_words(worker.log)
        if worker.task is None:
            if not worker.ready:
                how = reason or f"the library could not be loaded: the process that opened it {how}"
            return self._replaced(how, again=not hung)
        started, task = worker.started, worker.task
        if started is None:
            return self._lost_between(task, how)
        failed = Result(started.id, started.function, started.dtype, started.label, "fail", how)
        self._progress[task.source, task.group] = _Progress(started.position, failed)
        self._tasks.appendleft(Task(task.source, task.group, started.position + 1))
        self._start()
        return self._result(failed)

    def _replaced(self, how: str, *, again: bool) -> bool:
        """A worker without a group was lost. If no other could be had, the groups that are left fail."""
        if self.vendor is None:
            raise PoolError(how)
        if not self._tasks:
            return True
        self._useless += 1
        self._why = how
        if again and self._useless < _MOST_USELESS:
            self._start()
        return True

    def _lost_between(self, task: Task, how: str) -> bool:
        """No case was running: the one before may have done it, or the building of the next."""
        progress = self._progress.setdefault((task.source, task.group), _Progress())
        progress.crashes += 1
        again = progress.crashes < _MOST_CRASHES
        if again:
            self._tasks.appendleft(Task(task.source, task.group, progress.position + 1))
        if self._tasks:
            self._start()
        last = progress.last
        if not again:
            place = f"behind {last.id}" if last is not None else "while its cases were built"
            return self._given_up(task, f"{how} {progress.crashes} times {place}")
        if last is None:
            return self._result(_failed(task, 0, f"building its cases {how}"))
        how = f"after case {last.id}, before the next began: {how}"
        if last.status == "fail":
            how = f"{last.reason}; {how}"
        return self._result(Result(last.id, last.function, last.dtype, last.label, "fail", how))

    def _given_up(self, task: Task, reason: str) -> bool:
        """The rest of a group fails as a whole; its id is the one behind the last case that ran."""
        last = self._progress.get((task.source, task.group), _Progress()).last
        number = 0 if last is None else parted(last.id)[2] + 1
        self._finished(task)
        return self._result(_failed(task, number, f"{reason}; from here on the group was not run", last))

    def _end(self) -> None:
        """Idle workers leave by themselves; the others are not waited for."""
        for worker in self._workers:
            if worker.task is not None or not worker.ready:
                worker.process.terminate()
        limit = time.monotonic() + 5
        for worker in self._workers:
            worker.process.join(max(0.1, limit - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join(5)
            worker.connection.close()
        self._workers = []


def _failed(task: Task, number: int, reason: str, last: Result | None = None) -> Result:
    function = task.group if last is None else last.function
    return Result(case_id(task.source, task.group, number), function, "", "suite", "fail", reason)
