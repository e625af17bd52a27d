"""Judging that the program does not wait for: values that are still on their way from the device, then a thread of its own.

The thread never asks the device. Whether values have arrived is asked by the program's own threads when they come by: one of ours
that waited for the device would break the recording of a CUDA graph, and would wait for ever for a device that hangs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from op_tools.engine import ENGINE, native

__all__ = ["Background", "Copies", "Job"]

# Seconds that the end of a program waits for what is queued, and then for the operator that is being computed.
PATIENCE = 10.0
_LAST_OPERATOR = 60.0
_PAUSE = 0.002
_WATCH = 0.5
# The thread is woken once in a step, or when so many calls have come since or so many seconds have passed: each time costs the
# program more than a call does.
_MOST_UNSEEN = 32
_LONGEST_UNSEEN = 0.05


class _Abandoned(BaseException):
    """Raised in the thread to end what it is doing."""


class Copies(Protocol):
    """Copies that are on their way from devices: `op_tools.engine.native.queued_copies`."""

    def arrived(self) -> bool:
        """Whether they are done."""

    def wait(self) -> None:
        """Wait until they are."""

    def seconds(self) -> float:
        """Of the devices' time, once they have arrived; 0 where that is not known."""


@dataclass(eq=False)
class Job:
    """Something to be judged, and what it holds until then."""

    judge: Callable[[], None]
    copies: Copies
    size: int = 0  # bytes
    arrived: Callable[[float], None] | None = None
    """Takes the seconds that the devices copied for it."""
    judged: Callable[[float], None] | None = None
    """Takes the seconds that the thread computed for it."""


class Background:
    """One thread, and a queue in front of it that is bounded in calls and bytes. Jobs are run in order.

    What does not fit is dropped and counted; `waits`: the program waits until it fits.
    """

    def __init__(self, most: int, most_bytes: int, *, waits: bool = False) -> None:
        self.most, self.most_bytes, self.waits = most, most_bytes, waits
        self.dropped = self.too_large = self.lost = 0
        self._changed = threading.Condition()
        self._on_the_way: deque[Job] = deque()
        self._ready: deque[Job] = deque()
        self._count = self._size = 0  # also of what is being judged
        self._unseen = 0  # jobs that have come since the last look
        self._looked = 0.0
        self._closing = False
        # Asked by the thread now and then.
        self.watch: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        # Not join(): in Python 3.11 a thread that Ctrl-C kept from being joined counts as ended.
        self._ended = threading.Event()
        self._pid = os.getpid()
        # Logs are closed by finalizers, which must not come before what is still to be judged: the last to register is the first
        # to be called, and the finalizers of a process register together, with the first of them.
        weakref.finalize(self, int)
        myself = weakref.ref(self)
        self._at_exit = lambda: _close(myself)

    # -- for the program's threads ---------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Whether a job of so many bytes fits now. If not, it is counted as dropped, or waited for."""
        if self.waits:
            self._make_room(size)
            return True
        if size > self.most_bytes:
            self.too_large += 1
            return False
        if self._is_full(size):
            self.look()
            if self._is_full(size):
                self.dropped += 1
                return False
        return True

    def _is_full(self, size: int) -> bool:
        # One that is larger than the whole queue is let in when that is empty.
        return self._count >= self.most or (self._size > 0 and self._size + size > self.most_bytes)

    def _make_room(self, size: int) -> None:
        while self._is_full(size):
            with self._changed:
                first = self._on_the_way[0] if self._on_the_way else None
            if first is not None:
                first.copies.wait()
                self.look()
            with self._changed:
                self._changed.wait_for(lambda: not self._is_full(size) or self._on_the_way, 0.1)

    @property
    def is_running(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None

    def anew(self) -> Background:
        """An empty one like this, for a forked child."""
        other = Background(self.most, self.most_bytes, waits=self.waits)
        other.watch = self.watch
        return other

    def submit(self, job: Job) -> None:
        """Queue a job; there was room for it, or it is let in all the same."""
        with self._changed:
            self._count += 1
            self._size += job.size
            self._on_the_way.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="op_tools background", daemon=True)
                atexit.register(self._at_exit)
                ENGINE.quietly(self._thread.start)
            self._unseen += 1
        if self._unseen >= _MOST_UNSEEN or time.monotonic() - self._looked >= _LONGEST_UNSEEN:
            self.look()

    def look(self) -> None:
        """See which values have arrived, and wake the thread for them."""
        with self._changed:
            self._unseen, self._looked = 0, time.monotonic()
            arrived = False
            while self._on_the_way:
                job = self._on_the_way[0]
                try:
                    if not job.copies.arrived():
                        break
                except RuntimeError:  # the device has failed: the program will hear of it
                    self._leave(self._on_the_way.popleft())
                    self.lost += 1
                    continue
                if job.arrived is not None:
                    job.arrived(job.copies.seconds())
                self._ready.append(self._on_the_way.popleft())
                arrived = True
            if arrived:
                self._changed.notify_all()

    def close(self, patience: float | None = PATIENCE) -> None:
        """Wait until everything that was queued is judged, but not longer than `patience` seconds."""
        if self._closing or os.getpid() != self._pid:
            return
        end = None if patience is None else time.monotonic() + patience
        try:
            while self._on_the_way and (end is None or time.monotonic() < end):
                self.look()
                time.sleep(_PAUSE if self._on_the_way else 0)
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            if self._thread is not None:
                self._ended.wait(None if end is None else max(0.0, end - time.monotonic()))
        finally:  # also of a wait that the user has ended
            self._closing = True
            self._abandon()
            atexit.unregister(self._at_exit)

    def _abandon(self) -> None:
        """End what is under way: the interpreter must not end before the thread, which it could not stop in good order."""
        with self._changed:
            self.lost += len(self._on_the_way) + len(self._ready)
            self._on_the_way.clear()
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is None or self._ended.is_set():
            return
        self.lost += 1
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_Abandoned))
        self._ended.wait(_LAST_OPERATOR)

    def _leave(self, job: Job) -> None:
        self._count -= 1
        self._size -= job.size
        self._changed.notify_all()

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with contextlib.suppress(_Abandoned):
                ENGINE.quietly(self._work)
        finally:
            self._ended.set()

    def _work(self) -> None:
        native.leave_thread()
        _compute_alone()
        while (job := self._next()) is not None:
            started = time.thread_time()
            ENGINE.guarded(None, None, job.judge)
            if job.judged is not None:
                job.judged(time.thread_time() - started)
            with self._changed:
                self._leave(job)

    def _next(self) -> Job | None:
        while True:
            with self._changed:
                watched = None if self.watch is None else _WATCH
                if self._changed.wait_for(lambda: self._ready or self._closing, watched):
                    return self._ready.popleft() if self._ready else None
            if self.watch is not None:
                self.watch()


def _close(background: weakref.ref[Background]) -> None:
    found = background()
    if found is not None:
        found.close()


def _compute_alone() -> None:
    """This thread computes without helpers: what it costs can then be measured, and the program keeps the processors.

    The number of threads is one for the process and one for each thread. Only this thread's is to be changed.
    """
    others = torch.get_num_threads()
    if others > 1:
        torch.set_num_threads(1)
        restoring = threading.Thread(target=torch.set_num_threads, args=(others,), daemon=True)
        restoring.start()
        restoring.join()
