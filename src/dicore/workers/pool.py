"""The pool: gives tasks to workers, hears of answers, deaths and time limits, replaces what is lost."""

from __future__ import annotations

import pickle
import signal
import socket
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from dicore.workers.launch import Child, ForkServer, Process, environment_of
from dicore.workers.process import Orders, one_line

__all__ = ["Done", "Lost", "Progress", "Ready", "WorkerPool", "describe_exit", "tail"]

_TICK_SECONDS = 0.5
_GRACE_SECONDS = 5.0


# --- what happens -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """A worker of the group has prepared itself; `facts` is what it found out."""

    group: str
    facts: Any


@dataclass(frozen=True)
class Progress:
    """What a task says before it is done."""

    group: str
    task: Any
    value: Any


@dataclass(frozen=True)
class Done:
    """The answer of a task."""

    group: str
    task: Any
    value: Any


@dataclass(frozen=True)
class Lost:
    """No answer will come. `task` is None when the worker was lost before it took one."""

    group: str
    task: Any
    cause: Literal["crash", "timeout", "raised", "start"]
    """The worker died; was ended after the time limit; the task raised; or no worker could be prepared."""
    message: str
    """One line, such as `crashed (signal 11, SIGSEGV)`."""
    log: str = ""
    """The end of what the worker printed since the last sign of life of the task, or the traceback."""
    seconds: float = 0.0

    @property
    def last_words(self) -> str:
        """The last line that the task printed itself: an abort says why."""
        text = self.log.partition("Fatal Python error:")[0].strip()
        return text.splitlines()[-1][:200] if text else ""


Event = Ready | Progress | Done | Lost


def describe_exit(code: int | None) -> str:
    """How a process ended, by its exit code."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"crashed (signal {-code}, {signal.Signals(-code).name})"
        return f"crashed (signal {-code})"
    return f"ended with exit code {code}"


def tail(log: Path, size: int = 4000) -> str:
    """The end of a log, without the long list of extension modules that a crash leaves there."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition("\nExtension modules:")[0][-size:] or text[-size:]


# --- the pool ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Worker:
    group: str
    process: Process
    connection: Connection
    log: Path
    heard: float = field(default_factory=time.monotonic)
    ready: bool = False
    busy: bool = False
    task: Any = None
    progress: Any = None
    begun: float = 0.0

    @property
    def idle(self) -> bool:
        return self.ready and not self.busy


class WorkerPool:
    """Up to `workers` processes of one entry point; use as a context manager.

    entry: "module:function", called in each worker with its group and `setup`; returns a `Service`.
    timeout: seconds without a sign of life of a task, or a function of the task and its last progress (None at first).
    environment: variables for the workers beside this process's; None takes one away.
    preload: modules that are imported once, in a process that workers are then forked from. What starts an
    accelerator or a thread when it is imported must not be among them.
    tasks_per_worker: so many waiting tasks of a group justify another worker for it.
    """

    def __init__(
        self,
        entry: str,
        setup: Any = None,
        *,
        workers: int,
        timeout: float | Callable[[Any, Any], float],
        environment: Mapping[str, str | None] | None = None,
        folder: str | None = None,
        preload: Sequence[str] = (),
        start_timeout: float = 300.0,
        start_attempts: int = 3,
        tasks_per_worker: int = 1,
    ) -> None:
        self._entry, self._setup = entry, pickle.dumps(setup)
        self._most = max(1, workers)
        self._timeout = timeout if callable(timeout) else lambda _task, _progress: timeout
        self._environment = environment_of(environment or {})
        self._folder, self._preload = folder, preload
        self._start_timeout, self._start_attempts = start_timeout, start_attempts
        self._tasks_per_worker = tasks_per_worker
        self._workers: list[_Worker] = []
        self._waiting: dict[str, deque[Any]] = {}
        self._to_open: deque[str] = deque()
        self._lost_starts: Counter[str] = Counter()
        self._why_lost: dict[str, tuple[str, str]] = {}
        self._started = 0
        self._server: ForkServer | None = None
        self._logs = tempfile.TemporaryDirectory(prefix="dicore-workers-")

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers: idle ones leave by themselves and close what they hold, the others are killed."""
        for worker in self._workers:
            if not worker.idle:
                worker.process.kill()
            worker.connection.close()
        until = time.monotonic() + _GRACE_SECONDS
        for worker in self._workers:
            self._reap(worker, max(0.0, until - time.monotonic()))
        self._workers.clear()
        if self._server is not None:
            self._server.close()
            self._server = None
        self._logs.cleanup()

    def open(self, group: str) -> None:
        """Start a worker of the group when there is room, to learn its facts before there are tasks."""
        self._to_open.append(group)

    def add(self, group: str, tasks: Iterable[Any], *, first: bool = False) -> None:
        """More to do, behind what waits or before it; also while `run` goes on."""
        queue = self._waiting.setdefault(group, deque())
        if first:
            queue.extendleft(reversed(list(tasks)))
        else:
            queue.extend(tasks)

    def run(self) -> Generator[Event, None, None]:
        """What happens, as it comes, until nothing is left to do.

        Workers stay for the next run. If the caller stops listening, what waits is dropped and busy workers are ended.
        """
        finished = False
        try:
            while self._to_open or any(self._waiting.values()) or not all(w.idle for w in self._workers):
                yield from self._staff()
                yield from self._listen()
            finished = True
        finally:
            if not finished:
                self._waiting.clear()
                self._to_open.clear()
                for worker in [w for w in self._workers if not w.idle]:
                    self._end(worker)

    # -- giving work --

    def _staff(self) -> Iterator[Lost]:
        """Give tasks to idle workers and start new ones while there is room: for opened groups, then where most waits."""
        for worker in [w for w in self._workers if w.idle]:
            if worker.connection.poll():  # it has nothing to say: the connection is closed
                how = describe_exit(self._end(worker))
                yield self._start_failed(
                    worker.group, f"a worker {how} before it took a task", tail(worker.log)
                )
            else:
                self._give(worker)
        for worker in [w for w in self._workers if w.idle]:
            if len(self._workers) >= self._most and (self._to_open or self._neediest() is not None):
                self._end(worker)
        while len(self._workers) < self._most:
            group = self._to_open.popleft() if self._to_open else self._neediest()
            if group is None:
                break
            try:
                self._start(group)
            except OSError as error:
                yield self._start_failed(group, f"no process could be started: {error}", "")
        yield from self._give_up()

    def _neediest(self) -> str | None:
        """The group that another worker would help most."""

        def need(group: str) -> float:
            staff = sum(worker.group == group for worker in self._workers)
            starting = sum(worker.group == group and not worker.ready for worker in self._workers)
            left = len(self._waiting[group]) - starting
            return left if not staff else left / staff - (self._tasks_per_worker - 1)

        groups = [group for group in self._waiting if self._can_start(group)]
        group = max(groups, key=need, default=None)
        return group if group is not None and need(group) > 0 else None

    def _can_start(self, group: str) -> bool:
        """Not after too many were lost in a row before they answered anything."""
        return self._lost_starts[group] < self._start_attempts

    def _give_up(self) -> Iterator[Lost]:
        """What waits for a worker that cannot be had."""
        for group, queue in self._waiting.items():
            if queue and not self._can_start(group) and all(w.group != group for w in self._workers):
                message, log = self._why_lost[group]
                while queue:
                    yield Lost(group, queue.popleft(), "start", message, log)

    def _start(self, group: str) -> None:
        ours, theirs = socket.socketpair()
        try:
            if self._preload and self._server is None:
                self._server = ForkServer(self._preload, self._environment, self._folder)
            process: Process
            if self._server is not None:
                try:
                    process = self._server.fork(theirs.fileno())
                except OSError:
                    self._server.close()
                    self._server = None
                    raise
            else:
                process = Child(theirs.fileno(), self._environment, self._folder)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._started += 1
        log = Path(self._logs.name) / f"worker-{self._started}.log"
        worker = _Worker(group, process, Connection(ours.detach()), log)
        self._workers.append(worker)
        # A thread that ends would take its workers along; one that is forked belongs to the server, which does not.
        lasting = self._server is not None or threading.current_thread() is threading.main_thread()
        with suppress(OSError):  # it died at once: _listen sees the closed connection
            worker.connection.send(Orders(self._entry, group, str(log), self._setup, lasting))

    def _give(self, worker: _Worker) -> None:
        queue = self._waiting.get(worker.group)
        if not queue:
            return
        worker.task, worker.busy, worker.progress = queue.popleft(), True, None
        worker.begun = worker.heard = time.monotonic()
        with suppress(OSError):  # it died while idle: _listen sees the closed connection
            worker.connection.send(worker.task)

    # -- hearing of it --

    def _listen(self) -> Iterator[Event]:
        waiting = [worker for worker in self._workers if not worker.idle]
        if not waiting:
            return
        spoke = set(wait([worker.connection for worker in waiting], timeout=_TICK_SECONDS))
        for worker in waiting:
            if worker.connection in spoke:
                yield from self._message(worker)
            else:
                yield from self._overdue(worker)

    def _message(self, worker: _Worker) -> Iterator[Event]:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            yield from self._died(worker)
            return
        except Exception as error:  # a class that only the worker can import
            kind, value = "raised", (f"its answer cannot be read: {one_line(error)}", "")
        worker.heard = time.monotonic()
        task, seconds = worker.task, worker.heard - worker.begun
        if worker.busy:
            self._lost_starts[worker.group] = 0
        if kind == "progress":
            worker.progress = value
            yield Progress(worker.group, task, value)
        elif kind == "refused":
            self._end(worker)
            yield self._start_failed(worker.group, *value, final=True)
        elif kind == "ready":
            worker.ready = True
            self._give(worker)
            yield Ready(worker.group, value)
        else:
            worker.task, worker.busy = None, False
            if kind == "last":
                self._end(worker)
            else:
                self._give(worker)  # before the caller looks at the answer: the worker goes on meanwhile
            if kind == "raised":
                message, trace = value
                yield Lost(worker.group, task, "raised", message, trace, seconds)
            else:
                yield Done(worker.group, task, value)

    def _overdue(self, worker: _Worker) -> Iterator[Lost]:
        limit = self._timeout(worker.task, worker.progress) if worker.ready else self._start_timeout
        now = time.monotonic()
        if now - worker.heard <= limit:
            return
        self._end(worker)
        if worker.busy:
            message = f"timed out after {limit:g} s"
            yield Lost(worker.group, worker.task, "timeout", message, tail(worker.log), now - worker.begun)
        else:
            message = f"a worker was not ready within {limit:g} s"
            yield self._start_failed(worker.group, message, tail(worker.log))

    def _died(self, worker: _Worker) -> Iterator[Lost]:
        seconds = time.monotonic() - worker.begun
        how = describe_exit(self._end(worker, grace=_GRACE_SECONDS))
        if worker.busy:
            yield Lost(worker.group, worker.task, "crash", how, tail(worker.log), seconds)
        elif not worker.ready:
            yield self._start_failed(worker.group, f"a worker {how} before it was ready", tail(worker.log))

    def _start_failed(self, group: str, message: str, log: str, *, final: bool = False) -> Lost:
        """`final`: the worker itself said that it cannot be prepared, so another one would not be either."""
        self._lost_starts[group] += self._start_attempts if final else 1
        self._why_lost[group] = message, log
        return Lost(group, None, "start", message, log)

    def _end(self, worker: _Worker, grace: float = 0.0) -> int | None:
        """Stop a worker, after a moment in which it may end by itself; its exit code."""
        self._workers.remove(worker)
        worker.connection.close()
        return self._reap(worker, _GRACE_SECONDS if worker.idle else grace)

    def _reap(self, worker: _Worker, grace: float) -> int | None:
        code = worker.process.exit_code(grace)
        if code is None:
            worker.process.kill()
            code = worker.process.exit_code(_GRACE_SECONDS)
        return code
