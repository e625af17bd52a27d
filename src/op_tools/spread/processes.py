"""Runs tasks in processes of their own: one that crashes or hangs takes nothing else with it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from op_tools.spread.task import Result, WorkerError, failure

__all__ = ["Pool"]

_START_SECONDS = 300.0
_GRACE_SECONDS = 10.0
# A process may die for reasons that are not its task's (out of memory beside a large one); twice is no accident.
_MOST_TRIES = 2


@dataclass
class _Task:
    index: int
    payload: Mapping[str, Any]
    deaths: int = 0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    answers: int  # descriptor of the pipe it answers on
    buffer: bytearray = field(default_factory=bytearray)
    ready: bool = False
    task: _Task | None = None
    since: float = field(default_factory=time.monotonic)
    gone: bool = False  # its end of the pipe is closed

    @property
    def idle(self) -> bool:
        return self.ready and self.task is None

    def send(self, value: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value).encode() + b"\n")
        self.process.stdin.flush()


class Pool:
    """Worker processes of one function. They stay between runs; `close` ends them."""

    def __init__(
        self,
        function: str,
        *,
        workers: int,
        timeout: float,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.function = function
        self.count = max(1, workers)
        self.timeout = timeout
        self.folder = folder
        self.environment = _environment(environment or {})
        self.waiting: deque[_Task] = deque()
        self.workers: list[_Worker] = []
        self.selector = selectors.DefaultSelector()
        self.failed_starts = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, whatever they do."""
        for worker in list(self.workers):
            self._end(worker)
        self.selector.close()

    def run(self, tasks: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, Result]]:
        """Results in the order they come in. One run at a time."""
        self.waiting = deque(_Task(index, payload) for index, payload in tasks)
        for worker in list(self.workers):
            if worker.task is not None:  # of a run that was given up
                self._end(worker)
            elif worker.idle:
                self._give(worker)
        while len(self.workers) < self.count and len(self.workers) < len(self.waiting) + self._busy():
            self._start()
        while self.waiting or self._busy():
            for key, _ in self.selector.select(timeout=0.2):
                yield from self._read(key.data)
            yield from self._overdue()

    def _busy(self) -> int:
        return sum(worker.task is not None for worker in self.workers)

    def _start(self) -> None:
        reading, writing = os.pipe()
        process = subprocess.Popen(
            # -P: the folder we are in may be one of captures, and a json.py in it is not for us to import.
            [sys.executable, "-P", "-m", "op_tools.spread.worker", str(writing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(writing,),
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,  # Ctrl-C is for this process; it ends the workers
        )
        os.close(writing)
        worker = _Worker(process, reading)
        self.workers.append(worker)
        self.selector.register(reading, selectors.EVENT_READ, worker)
        with contextlib.suppress(BrokenPipeError):  # it is gone already; its end of the pipe says so
            worker.send({"function": self.function})

    def _read(self, worker: _Worker) -> Iterator[tuple[int, Result]]:
        chunk = os.read(worker.answers, 1 << 20)
        if not chunk:
            yield from self._died(worker)
            return
        worker.buffer += chunk
        while (end := worker.buffer.find(b"\n")) >= 0:
            line = bytes(worker.buffer[:end])
            del worker.buffer[: end + 1]
            done, worker.task = worker.task, None
            if not worker.ready:
                worker.ready = True
                self.failed_starts = 0
            self._give(worker)  # before the result is looked at: it goes on meanwhile
            if done is not None:
                yield done.index, json.loads(line)

    def _give(self, worker: _Worker) -> None:
        if not self.waiting:
            return
        worker.task, worker.since = self.waiting.popleft(), time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # noticed when its answers end
            worker.send(worker.task.payload)

    def _died(self, worker: _Worker) -> Iterator[tuple[int, Result]]:
        task = worker.task
        worker.gone = True
        how = self._end(worker)
        if task is not None:
            task.deaths += 1
            if task.deaths < _MOST_TRIES:
                self.waiting.appendleft(task)
            else:
                yield (
                    task.index,
                    failure(f"the process that ran it {how} (second try; the first process died too)"),
                )
        elif not worker.ready:
            self.failed_starts += 1
            if self.failed_starts >= _MOST_TRIES:
                raise WorkerError(f"a worker process {how} before it was ready; --workers 0 shows why")
        if self.waiting:
            self._start()

    def _overdue(self) -> Iterator[tuple[int, Result]]:
        for worker in list(self.workers):
            taken = time.monotonic() - worker.since
            if worker.task is not None and taken > self.timeout:
                task = worker.task
                self._end(worker)
                yield task.index, failure(f"no result within the time limit of {self.timeout:g} s")
                if self.waiting:
                    self._start()
            elif not worker.ready and taken > _START_SECONDS:
                self._end(worker)
                raise WorkerError(f"a worker process was not ready within {_START_SECONDS:g} s")

    def _end(self, worker: _Worker) -> str:
        """Stop a worker and say how it ended."""
        self.workers.remove(worker)
        self.selector.unregister(worker.answers)
        os.close(worker.answers)
        if worker.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                worker.process.stdin.close()  # an idle one goes home by itself
        try:
            code = worker.process.wait(timeout=_GRACE_SECONDS if worker.gone or worker.idle else 0.0)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
            return "was stopped"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _environment(carried: Mapping[str, str]) -> dict[str, str]:
    """As this process, and with this very op_tools on the path; workers share the machine's cores."""
    home = str(Path(__file__).resolve().parents[2])
    paths = dict.fromkeys(filter(None, [home, carried.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]))
    return {"OMP_NUM_THREADS": "1", **os.environ, **carried, "PYTHONPATH": os.pathsep.join(paths)}
