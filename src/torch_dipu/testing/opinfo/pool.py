"""Workers that may crash or hang: the pair is marked, a new worker takes over, the sweep goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch_dipu.testing.opinfo import worker
from torch_dipu.testing.opinfo.model import Options, Outcome, Pair, Problem, Selection, State, WorkerFacts

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # the device comes to life in each worker, after the fork
    "DIPU_MOCK_CUDA": "0",  # the device is under test, not the mapping of CUDA names
}
_START_SECONDS = 120.0
_TOO_SLOW = f"a worker did not start within {_START_SECONDS:g} s"


class StartError(RuntimeError):
    """A worker could not even be prepared: nothing can be compared."""


@dataclass
class _Worker:
    process: Any
    connection: Connection
    log: Path
    pair: Pair | None = None
    since: float = 0.0
    ready: bool = False


class Pool:
    """``jobs`` workers; use as a context manager.

    With ``forkserver`` the database is imported once, in a process without a device, and workers are forked
    from it; accelerators of torch's own may be touched by that import and cannot be forked, they need
    ``spawn``. The fork server lives as long as this process and keeps the environment of its first use.
    """

    def __init__(self, options: Options, jobs: int, timeout: float, start_method: str = "forkserver") -> None:
        self.options = options
        self.jobs = jobs
        self.timeout = timeout
        self.facts: WorkerFacts | None = None
        self._context: Any = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            database = options.op_db.partition(":")[0]
            self._context.set_forkserver_preload([database, "torch.testing._internal.opinfo.core"])
        self._folder = tempfile.TemporaryDirectory(prefix="opinfo-")
        self._workers: list[_Worker] = []
        self._started = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for active in list(self._workers):
            self._stop(active)
        self._folder.cleanup()

    def plan(self, selection: Selection) -> list[Pair]:
        """Ask a worker: this process never imports the database."""
        active = self._start()
        self._await_ready(active)
        active.connection.send(selection)
        pairs: list[Pair] = active.connection.recv()
        return pairs

    def run(self, pairs: Iterable[Pair]) -> Iterator[Outcome]:
        """Outcomes as they come. Every pair gets exactly one."""
        todo = deque(pairs)
        while len(self._workers) < min(self.jobs, max(1, len(todo))):
            self._start()
        while todo or any(active.pair for active in self._workers):
            for active in self._workers:
                if active.ready and active.pair is None and todo:
                    self._hand(active, todo.popleft())
            yield from self._collect()
            while todo and len(self._workers) < self.jobs:
                self._start()

    def _hand(self, active: _Worker, pair: Pair) -> None:
        active.pair, active.since = pair, time.monotonic()
        with suppress(OSError):  # it died while idle: _collect sees the closed connection
            active.connection.send(pair)

    def _collect(self) -> Iterator[Outcome]:
        """Answers, deaths and timeouts of one round."""
        waiting = [active for active in self._workers if active.pair or not active.ready]
        answered = set(wait([active.connection for active in waiting], timeout=1.0))
        now = time.monotonic()
        for active in waiting:
            if active.connection in answered:
                yield from self._answer(active)
            elif active.pair and now - active.since > self.timeout:
                yield self._lost(active, f"timed out after {self.timeout:g} s")
            elif not active.ready and now - active.since > _START_SECONDS:
                raise StartError(f"{_TOO_SLOW}\n{_tail(active.log)}")

    def _answer(self, active: _Worker) -> Iterator[Outcome]:
        if not active.ready:
            self._await_ready(active)
            return
        try:
            outcome = active.connection.recv()
        except (EOFError, OSError):
            active.process.join(10)
            yield self._lost(active, _death(active.process.exitcode))
            return
        active.pair = None
        if outcome.worker_is_spent:
            self._stop(active)
        yield outcome

    def _lost(self, active: _Worker, message: str) -> Outcome:
        assert active.pair is not None
        seconds = time.monotonic() - active.since
        self._stop(active)
        return Outcome(active.pair, 0, seconds, [Problem(State.ERROR, message, _tail(active.log))])

    def _start(self) -> _Worker:
        self._started += 1
        log = Path(self._folder.name) / f"worker-{self._started}.log"
        here, there = self._context.Pipe()
        process = self._context.Process(target=worker.main, args=(there, self.options, str(log)), daemon=True)
        with _environment():
            process.start()
        there.close()
        active = _Worker(process, here, log, since=time.monotonic())
        self._workers.append(active)
        return active

    def _await_ready(self, active: _Worker) -> None:
        try:
            answer = active.connection.recv() if active.connection.poll(_START_SECONDS) else _TOO_SLOW
        except (EOFError, OSError):
            active.process.join(10)
            answer = f"a worker {_death(active.process.exitcode)} while starting\n{_tail(active.log)}"
        if not isinstance(answer, WorkerFacts):
            raise StartError(str(answer))
        active.ready, self.facts = True, answer

    def _stop(self, active: _Worker) -> None:
        self._workers.remove(active)
        active.connection.close()
        active.process.kill()
        active.process.join(10)


@contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"crashed (signal {-exitcode}, {signal.Signals(-exitcode).name})"
    return f"left with exit code {exitcode}"


def _tail(log: Path, size: int = 4000) -> str:
    """The end of a worker's log, without the long list of extension modules that a crash leaves there."""
    if not log.exists():
        return ""
    text = log.read_text(errors="replace")
    return text.rpartition("\nExtension modules:")[0][-size:] or text[-size:]
