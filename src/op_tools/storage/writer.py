"""One background thread that writes, behind a queue bounded by bytes and by items.

The training never sees an error from here: the first failure is reported once, what is left is dropped and counted.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# How long the thread lets items gather before it starts on them. Waking it for each one would cost the caller more than
# everything else in put(): a system call, and then the interpreter lock, which the woken thread takes at once.
GATHER_SECONDS = 0.01
# Part of the queue that, when filled, ends the gathering early.
_HURRY_FROM = 1 / 16

_inherited: weakref.WeakSet[Any] = weakref.WeakSet()


def reset_in_children(thing: Any) -> None:
    """Call `thing.after_fork()` in every forked child: threads, locks and open files are the parent's there."""
    _inherited.add(thing)


def _after_fork_in_child() -> None:
    for thing in list(_inherited):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(eq=False)
class BackgroundWriter:
    """Runs `handle(item)` for each item in order. The thread starts with the first item and is a daemon.

    `handle` returns False to say that writing is over (the disk is full): what follows goes to `drop`.
    """

    handle: Callable[[Any], bool]
    drop: Callable[[Any], None]
    max_bytes: int = 1 << 30
    max_items: int = 8192
    name: str = "op_tools writer"
    waits: int = 0
    wait_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._reset()
        reset_in_children(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # waited on by the thread: something to do
        self._room = threading.Condition(self._lock)  # waited on by put() and flush(): something was done
        self._queue: deque[tuple[Any, int]] = deque()
        self.queued_bytes = 0
        self._put = 0
        self._done = 0
        self._idle = False  # the thread waits for a first item
        self._gathering = False  # the thread has seen one and waits for more
        self._closing = False
        self.stopped = False  # the handler gave up: further items are dropped
        self._blocked = 0
        self._thread: threading.Thread | None = None

    @property
    def is_current(self) -> bool:
        """Whether this is the writer's own thread: it must not wait for itself."""
        return threading.current_thread() is self._thread

    def put(self, item: Any, nbytes: int) -> bool:
        """Queue an item, waiting while the queue is full. False: closed or stopped, the item was not taken."""
        with self._lock:
            if self._closing or self.stopped:
                return False
            if self._full(nbytes):
                self._wait_for_room(nbytes)
                if self._closing or self.stopped:
                    return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()
            self._queue.append((item, nbytes))
            self.queued_bytes += nbytes
            self._put += 1
            if self._idle or (self._gathering and self.queued_bytes > self.max_bytes * _HURRY_FROM):
                self._idle = self._gathering = False
                self._work.notify()
        return True

    def _full(self, nbytes: int) -> bool:
        # One item larger than the whole queue is let in when the queue is empty; it could never get in otherwise.
        return len(self._queue) >= self.max_items or (
            self.queued_bytes > 0 and self.queued_bytes + nbytes > self.max_bytes
        )

    def _wait_for_room(self, nbytes: int) -> None:
        self.waits += 1
        started = time.perf_counter()
        self._blocked += 1
        self._work.notify()
        while self._full(nbytes) and not self._closing and not self.stopped:
            self._room.wait()
        self._blocked -= 1
        self.wait_seconds += time.perf_counter() - started

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything put before this call was handled or dropped."""
        if self.is_current:
            return False
        with self._lock:
            goal = self._put
            self._blocked += 1
            self._work.notify()
            try:
                return self._room.wait_for(lambda: self._done >= goal, timeout)
            finally:
                self._blocked -= 1

    def close(self, timeout: float | None = None) -> bool:
        """Handle what is queued, end the thread; put() then returns False."""
        with self._lock:
            self._closing = True
            self._work.notify_all()
            self._room.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self) -> None:
        while self._wait_for_work():
            # An item leaves the queue only when it is done: its memory counts until then. Only this thread takes.
            for _ in range(len(self._queue)):
                item, nbytes = self._queue[0]
                if self.stopped:
                    self.drop(item)
                elif not self.handle(item):
                    self.stopped = True
                del item
                with self._lock:
                    self._queue.popleft()
                    self.queued_bytes -= nbytes
                    self._done += 1
                    if self._blocked:
                        self._room.notify_all()

    def _wait_for_work(self) -> bool:
        """Until there are items, and a little longer so that there are many. False: closed, and nothing is left."""
        with self._lock:
            while not self._queue:
                if self._closing:
                    return False
                self._idle = True
                self._work.wait()
            self._idle = False
            if not self._closing and not self._blocked and self.queued_bytes <= self.max_bytes * _HURRY_FROM:
                self._gathering = True
                self._work.wait(GATHER_SECONDS)
                self._gathering = False
        return True

    def after_fork(self) -> None:
        """In a child: the thread, the lock's holder and the queued items belong to the parent."""
        closing = self._closing
        self._reset()
        self._closing = closing
        self.waits, self.wait_seconds = 0, 0.0
