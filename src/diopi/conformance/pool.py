"""The worker processes of a run: gives out groups, survives crashes and hangs, ends cleanly."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from diopi.conformance.results import Result
from diopi.conformance.selection import Selection
from diopi.conformance.source import Source
from diopi.conformance.worker import Fatal, Finished, Ready, Started, Task, serve

# Building the cases of a group, and importing what that needs, may take this much longer than a case may.
_BUILDING = 240.0
_TICK = 0.5


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
    heard: float = 0.0


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
        self._folder = Path()
        self._started = 0
        self.vendor: Ready | None = None

    def run(
        self, tasks: Iterable[Task], result: Callable[[Result], bool], finished: Callable[[Task], None]
    ) -> None:
        """Calls `result` for each case, which says whether to go on, and `finished` after each group."""
        self._tasks = deque(tasks)
        with tempfile.TemporaryDirectory(prefix="diopi-conformance-") as folder:
            self._folder = Path(folder)
            self._run(result, finished)

    def _run(self, result: Callable[[Result], bool], finished: Callable[[Task], None]) -> None:
        try:
            for _ in range(min(self._count, len(self._tasks))):
                self._start()
            while any(worker.task is not None or not worker.ready for worker in self._workers):
                if not self._step(result, finished):
                    return
        finally:
            self._end()

    def _step(self, result: Callable[[Result], bool], finished: Callable[[Task], None]) -> bool:
        by_connection = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(by_connection), _TICK):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                message = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                message = None
            going_on = (
                self._lost(worker, result)
                if message is None
                else self._heard(worker, message, result, finished)
            )
            if not going_on:
                return False
        return all(self._lost(worker, result, hung=True) for worker in self._hung())

    def _heard(
        self,
        worker: _Worker,
        message: object,
        result: Callable[[Result], bool],
        finished: Callable[[Task], None],
    ) -> bool:
        worker.heard = time.monotonic()
        match message:
            case Fatal(reason):
                raise PoolError(reason)
            case Ready():
                worker.ready, self.vendor = True, message
                self._give(worker)
            case Started():
                worker.started = message
            case Finished(None):
                assert worker.task is not None
                finished(worker.task)
                self._give(worker)
            case Finished(found) if found is not None:
                worker.started = None
                return result(found)
        return True

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        self._started += 1
        log = self._folder / f"worker-{self._started}.log"
        process = self._context.Process(target=serve, args=(theirs, *self._arguments, str(log)), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours, log, heard=time.monotonic()))

    def _give(self, worker: _Worker) -> None:
        worker.started = None
        worker.task = self._tasks.popleft() if self._tasks else None
        worker.connection.send(worker.task)

    def _hung(self) -> list[_Worker]:
        now = time.monotonic()
        return [
            worker
            for worker in self._workers
            if (worker.task is not None or not worker.ready)
            and now - worker.heard > (self._timeout if worker.started else self._timeout + _BUILDING)
        ]

    def _lost(self, worker: _Worker, result: Callable[[Result], bool], *, hung: bool = False) -> bool:
        """A worker died, or does not answer: its case fails, another worker goes on behind that case."""
        self._workers.remove(worker)
        if hung:
            worker.process.kill()
        worker.process.join(5)
        worker.connection.close()
        how = f"no answer within {self._timeout:g} s" if hung else _ending(worker.process.exitcode)
        how += _last_words(worker.log)
        if not worker.ready:
            raise PoolError(f"the library could not be loaded: the process that opened it {how}")
        if worker.task is None:
            return True
        started, task = worker.started, worker.task
        if started is None:
            failed = Result(
                f"{task.source}:{task.group}:0", "", "", "suite", "fail", f"building its cases {how}"
            )
        else:
            failed = Result(started.id, started.function, started.dtype, started.label, "fail", how)
            self._tasks.appendleft(Task(task.source, task.group, started.position + 1))
        if self._tasks:
            self._start()
        return result(failed)

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


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            name = f" {signal.Signals(-code).name}"
        except ValueError:
            name = ""
        return f"crashed (signal {-code}{name})"
    return f"ended the process (exit code {code})"


def _last_words(log: Path) -> str:
    """The last line that the process printed: an abort says why."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1][:200]}" if lines else ""
