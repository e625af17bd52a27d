"""Replays many calls in processes of their own: one that crashes or hangs takes nothing else with it."""

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from op_tools.replay.items import Item
from op_tools.replay.model import ItemReport, Options

__all__ = ["WorkerError", "replay_in_processes"]

_START_SECONDS = 300.0
_GRACE_SECONDS = 10.0


class WorkerError(RuntimeError):
    """No worker could be started: the reason is that worker's last words."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    answers: int  # descriptor of the pipe it answers on
    buffer: bytearray = field(default_factory=bytearray)
    ready: bool = False
    task: tuple[int, Item] | None = None
    since: float = field(default_factory=time.monotonic)
    gone: bool = False  # its end of the pipe is closed

    @property
    def idle(self) -> bool:
        return self.ready and self.task is None

    def send(self, value: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value).encode() + b"\n")
        self.process.stdin.flush()


def replay_in_processes(
    items: Sequence[Item], options: Options, workers: int, timeout: float
) -> Iterator[tuple[int, ItemReport]]:
    """Reports with the index of their item, in the order they come in."""
    with _Pool(items, options, timeout) as pool:
        yield from pool.run(max(1, min(workers, len(items))))


class _Pool:
    def __init__(self, items: Sequence[Item], options: Options, timeout: float) -> None:
        self.options = options
        self.timeout = timeout
        self.waiting = deque(enumerate(items))
        self.workers: list[_Worker] = []
        self.selector = selectors.DefaultSelector()
        self.failed_starts = 0

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self.workers):
            self._end(worker)
        self.selector.close()

    def run(self, count: int) -> Iterator[tuple[int, ItemReport]]:
        for _ in range(count):
            self._start()
        while self.waiting or any(worker.task for worker in self.workers):
            for key, _ in self.selector.select(timeout=0.2):
                yield from self._read(key.data)
            yield from self._overdue()

    def _start(self) -> None:
        reading, writing = os.pipe()
        process = subprocess.Popen(
            # -P: the folder we are in may be one of captures, and a json.py in it is not for us to import.
            [sys.executable, "-P", "-m", "op_tools.replay.worker", str(writing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(writing,),
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for this process; it ends the workers
        )
        os.close(writing)
        worker = _Worker(process, reading)
        self.workers.append(worker)
        self.selector.register(reading, selectors.EVENT_READ, worker)
        try:
            worker.send(self.options.as_dict())
        except BrokenPipeError:  # it is gone already; its end of the pipe says so
            return

    def _read(self, worker: _Worker) -> Iterator[tuple[int, ItemReport]]:
        chunk = os.read(worker.answers, 1 << 20)
        if not chunk:
            yield from self._died(worker)
            return
        worker.buffer += chunk
        while (end := worker.buffer.find(b"\n")) >= 0:
            line = bytes(worker.buffer[:end])
            del worker.buffer[: end + 1]
            if not worker.ready:
                worker.ready = True
            elif worker.task is not None:
                index, _ = worker.task
                worker.task = None
                yield index, ItemReport.from_dict(json.loads(line))
            self._give(worker)

    def _give(self, worker: _Worker) -> None:
        if not self.waiting:
            self._end(worker)
            return
        index, item = self.waiting.popleft()
        worker.task, worker.since = (index, item), time.monotonic()
        try:
            worker.send(
                {
                    "folder": str(item.folder),
                    "prefix": item.prefix,
                    "first_id": 1 + index * self.options.run_times,
                }
            )
        except BrokenPipeError:  # reported when its answers end
            return

    def _died(self, worker: _Worker) -> Iterator[tuple[int, ItemReport]]:
        task = worker.task
        worker.gone = True
        how = self._end(worker)
        if task is not None:
            yield self._lost(task, f"the process that ran it {how}")
        elif not worker.ready:
            self.failed_starts += 1
            if self.failed_starts >= 2:
                raise WorkerError(f"a worker process {how} before it was ready; --workers 0 shows why")
        if self.waiting:
            self._start()

    def _overdue(self) -> Iterator[tuple[int, ItemReport]]:
        for worker in list(self.workers):
            taken = time.monotonic() - worker.since
            if worker.task is not None and taken > self.timeout:
                task = worker.task
                self._end(worker)
                yield self._lost(task, f"no result within {self.timeout:g} s (--timeout)")
                if self.waiting:
                    self._start()
            elif not worker.ready and taken > _START_SECONDS:
                self._end(worker)
                raise WorkerError(f"a worker process was not ready within {_START_SECONDS:g} s")

    def _lost(self, task: tuple[int, Item], reason: str) -> tuple[int, ItemReport]:
        index, item = task
        return index, ItemReport(item.label, status="error", reason=reason)

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


def _environment() -> dict[str, str]:
    """As this process, and with this very op_tools on the path; workers share the machine's cores."""
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
