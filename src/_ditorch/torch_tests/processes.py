"""Processes that may crash or hang: the task is marked, a new process takes over, the run goes on.

A process belongs to a group (the operator database, or one test file), prepares itself for it, and then answers
tasks of that group one by one.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from _ditorch.torch_tests.model import State

__all__ = [
    "Answer",
    "Crew",
    "Lost",
    "Ready",
    "StartError",
    "die_with_parent",
    "one_line",
    "serve",
    "speak_into",
    "tail",
]

_START_SECONDS = 180.0
_STARTS = 3  # of processes of one group that are lost while preparing, before the group is given up
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_MORE_HANDS = 25  # tasks of a group for each process that works on it


class StartError(RuntimeError):
    """A process could not even be prepared: nothing can be run."""


@dataclass(frozen=True)
class Ready:
    """A process of the group has prepared itself; `facts` is what it found out."""

    group: str
    facts: Any


@dataclass(frozen=True)
class Lost:
    """No answer came: the process died, or was ended after the time limit."""

    state: State
    message: str
    detail: str
    seconds: float


@dataclass(frozen=True)
class Answer:
    """What became of one task; `task` is None when the process was lost while preparing."""

    group: str
    task: Any
    value: Any


@dataclass
class _Worker:
    group: str
    process: Any
    connection: Connection
    log: Path
    since: float
    task: Any = None
    ready: bool = False

    @property
    def idle(self) -> bool:
        return self.ready and self.task is None


@dataclass
class Crew:
    """``jobs`` processes; use as a context manager.

    `target` runs in each: it gets the connection, the group, the path of its log and `setup`, and calls `serve`.
    With ``forkserver`` the modules in `preload` are imported once, in a process without a device, and processes are
    forked from it. Accelerators that such an import starts cannot be forked; they need ``spawn``.
    """

    target: Callable[[Connection, str, str, Any], None]
    setup: Any
    jobs: int
    seconds: Callable[[Any], float]
    """The time limit of a task."""
    environment: Mapping[str, str | None]
    start_method: str = "forkserver"
    preload: Sequence[str] = ()
    spent: Callable[[Any], bool] = lambda _: False
    """Whether the process that gave this answer can be of no further use."""
    _workers: list[_Worker] = field(default_factory=list)
    _todo: dict[str, deque[Any]] = field(default_factory=dict)
    _new: deque[str] = field(default_factory=deque)
    _started: int = 0
    _lost_starts: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> Crew:
        self._context: Any = multiprocessing.get_context(self.start_method)
        if self.start_method == "forkserver":
            self._context.set_forkserver_preload(list(self.preload))
        self._folder = tempfile.TemporaryDirectory(prefix="torch-tests-")
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._workers):
            self._stop(worker)
        self._folder.cleanup()

    def open(self, group: str) -> None:
        """Start a process of the group, when there is room, to learn its facts."""
        self._new.append(group)

    def add(self, group: str, tasks: Sequence[Any]) -> None:
        """More to do; also while `run` is going on."""
        self._todo.setdefault(group, deque()).extend(tasks)

    def run(self) -> Iterator[Ready | Answer]:
        """Everything as it comes, until nothing is left to do. Every task gets exactly one answer."""
        while self._new or any(self._todo.values()) or any(not worker.idle for worker in self._workers):
            self._staff()
            for worker in self._workers:
                queue = self._todo.get(worker.group)
                if worker.idle and queue:
                    self._hand(worker, queue.popleft())
            yield from self._collect()

    def _staff(self) -> None:
        """Start processes while there is room: for new groups first, then where most is left to do."""
        for worker in list(self._workers):
            if worker.idle and not self._todo.get(worker.group) and (self._new or self._neediest()):
                self._stop(worker)
        while len(self._workers) < self.jobs:
            group = self._new.popleft() if self._new else self._neediest()
            if group is None:
                return
            self._start(group)

    def _neediest(self) -> str | None:
        def need(group: str) -> float:
            hands = sum(worker.group == group for worker in self._workers)
            left = len(self._todo[group])
            return left if not hands else left / hands - _MORE_HANDS

        group = max(self._todo, key=need, default=None)
        return group if group is not None and need(group) > 0 else None

    def _hand(self, worker: _Worker, task: Any) -> None:
        worker.task, worker.since = task, time.monotonic()
        with suppress(OSError):  # it died while idle: _collect sees the closed connection
            worker.connection.send(task)

    def _collect(self) -> Iterator[Ready | Answer]:
        """Answers, deaths and timeouts of one round."""
        busy = [worker for worker in self._workers if not worker.idle]
        answered = set(wait([worker.connection for worker in busy], timeout=0.5))
        now = time.monotonic()
        for worker in busy:
            limit = self.seconds(worker.task) if worker.ready else _START_SECONDS
            if worker.connection in answered:
                yield self._answer(worker)
            elif now - worker.since > limit:
                yield self._lost(worker, State.TIMEOUT, f"timed out after {limit:g} s")
            if self._lost_starts[worker.group] >= _STARTS:
                yield from self._given_up(worker)

    def _answer(self, worker: _Worker) -> Ready | Answer:
        try:
            value = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(10)
            return self._lost(worker, State.CRASH, _death(worker.process.exitcode))
        if isinstance(value, StartError):
            raise value
        if not worker.ready:
            worker.ready = True
            return Ready(worker.group, value)
        task, worker.task = worker.task, None
        if self.spent(value):
            self._stop(worker)
        return Answer(worker.group, task, value)

    def _lost(self, worker: _Worker, state: State, message: str) -> Answer:
        seconds = time.monotonic() - worker.since
        self._lost_starts[worker.group] += not worker.ready
        self._stop(worker)
        return Answer(worker.group, worker.task, Lost(state, message, tail(worker.log), seconds))

    def _given_up(self, worker: _Worker) -> Iterator[Answer]:
        """What is left of a group whose processes cannot be prepared."""
        queue = self._todo.get(worker.group, deque())
        message = f"no process could be prepared for it, {_STARTS} were tried"
        while queue:
            yield Answer(worker.group, queue.popleft(), Lost(State.ERROR, message, tail(worker.log), 0.0))

    def _start(self, group: str) -> None:
        self._started += 1
        log = Path(self._folder.name) / f"process-{self._started}.log"
        here, there = self._context.Pipe()
        arguments = (there, group, str(log), self.setup)
        process = self._context.Process(target=_enter, args=(self.environment, self.target, arguments))
        with _environment(self.environment), _hidden_program():
            process.start()
        there.close()
        self._workers.append(_Worker(group, process, here, log, time.monotonic()))

    def _stop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.kill()
        worker.process.join(10)


def _enter(
    environment: Mapping[str, str | None], target: Callable[..., None], arguments: Sequence[Any]
) -> None:
    """A fork server has the environment of its first use; the process gets its own here."""
    die_with_parent()
    _set(environment)
    target(*arguments)


def die_with_parent() -> None:
    """A process that hangs must not outlive the run, whatever ends it. Linux only; elsewhere nothing happens."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def serve(connection: Connection, prepare: Callable[[], Any], answer: Callable[[Any], Any]) -> None:
    """The other end: prepare, then answer tasks until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    try:
        facts = prepare()
    except BaseException as error:
        import traceback

        connection.send(StartError(f"{one_line(error)}\n{traceback.format_exc()}"))
        return
    connection.send(facts)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(answer(task))


def speak_into(log: str) -> None:
    """Whatever libraries print would tear the parent's progress bar; a crash leaves its traceback here."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable(file=2)


def one_line(error: BaseException) -> str:
    """Type and text of an exception, without the C++ stack that torch may add."""
    text = " ".join(str(error).split("\nException raised from")[0].split())
    return f"{type(error).__name__}: {text[:300]}"


def tail(log: Path, size: int = 4000) -> str:
    """The end of a log, without the long list of extension modules that a crash leaves there."""
    if not log.exists():
        return ""
    text = log.read_text(errors="replace")
    return text.rpartition("\nExtension modules:")[0][-size:] or text[-size:]


@contextmanager
def _environment(wanted: Mapping[str, str | None]) -> Iterator[None]:
    """The variables of a process to be started; None takes one away."""
    before = {name: os.environ.get(name) for name in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


@contextmanager
def _hidden_program() -> Iterator[None]:
    """A new process would import the program that runs here, and a script without a guard would run again.

    Under the name of our own program, importing ditorch there starts nothing: the process does that itself.
    """
    program, words = sys.modules["__main__"], sys.argv
    sys.modules["__main__"], sys.argv = types.ModuleType("__main__"), ["ditorch"]
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv = program, words


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"crashed (signal {-exitcode}, {signal.Signals(-exitcode).name})"
    return f"left with exit code {exitcode}"
