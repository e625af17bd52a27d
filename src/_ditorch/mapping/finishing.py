"""A collective that runs by itself and whose result still has to be finished."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

__all__ = ["Finish", "FinishingWork"]

Finish = Callable[[], None]

# A torch without distributed training has no such class, and then nobody makes one of ours.
_Work: Any = getattr(torch.distributed, "Work", object)


class FinishingWork(_Work):  # type: ignore[misc]
    """Stands for `work`; whoever first learns that it is done finishes the result, once."""

    def __init__(self, work: Any, *finishes: Finish) -> None:
        super().__init__()
        self._work = work
        self._finishes = list(finishes)
        self._lock = threading.Lock()
        self._future: Any = None

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        done: bool = self._work.wait(*args, **kwargs)
        self._finish()
        return done

    def synchronize(self) -> None:
        self._work.synchronize()
        self._finish()

    def is_completed(self) -> bool:
        if not self._work.is_completed():
            return False
        self._finish()
        return True

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        self._finish()
        return self._work.result()

    def get_future(self) -> Any:
        if self._future is None:
            self._future = self._work.get_future().then(self._finished_value)
        return self._future

    def _finished_value(self, future: Any) -> Any:
        value = future.value()
        self._finish()
        return value

    def _finish(self) -> None:
        # The lock is held until all is finished: a second thread that waits must not return before.
        with self._lock:
            finishes, self._finishes = self._finishes, []
            for finish in finishes:
                finish()
