"""Work of a tool on a thread of its own: the program does not wait, and what does not fit is dropped and counted."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from op_tools.engine import ENGINE, native

Job = Callable[[], None]


class Background:
    """One thread and a bounded queue in front of it. Jobs are run in order; an error in one is the job's own business."""

    def __init__(self, most_waiting: int) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(most_waiting)
        self._thread: threading.Thread | None = None
        self.dropped = 0
        self.seconds = 0.0  # of the thread's own CPU time

    @property
    def is_full(self) -> bool:
        """Whether a job would be dropped now."""
        return self._jobs.full()

    def submit(self, job: Job) -> None:
        """Queue a job, or drop it."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.dropped += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="op_tools background", daemon=True)
            ENGINE.quietly(self._thread.start)

    def _run(self) -> None:
        ENGINE.quietly(self._work)

    def _work(self) -> None:
        native.leave_thread()
        while (job := self._jobs.get()) is not None:
            started = time.thread_time()
            ENGINE.guarded(None, None, job)
            self.seconds += time.thread_time() - started

    def close(self) -> None:
        """Wait until everything that was queued is done."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
