"""A quiet end of the process.

Autograd has a thread for each device. After the last backward pass such a thread still tidies up, for which it
needs the interpreter's lock; if the interpreter ends meanwhile, the thread is killed inside C++ code and the process
aborts ("terminate called without an active exception"). A short program on a busy machine meets this often. So the
exit waits until these threads are idle.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path

from torch_dipu import _C, memory

_THREAD_NAME = "pt_autograd_"  # given by torch, on Linux visible to the process
_LIMIT_SECONDS = 5.0
_PAUSE_SECONDS = 0.012  # longer than a thread that waits for the interpreter's lock sleeps at a time


def _autograd_threads() -> dict[str, str]:
    """Autograd's device threads that are up: id -> state and number of switches. Empty where the system does not tell."""
    threads = {}
    for task in Path("/proc/self/task").glob("*"):
        try:
            if not (task / "comm").read_text().startswith(_THREAD_NAME):
                continue
            lines = (task / "status").read_text().splitlines()
        except OSError:  # the thread has just ended
            continue
        threads[task.name] = " ".join(
            line for line in lines if line.startswith(("State:", "voluntary", "nonvoluntary"))
        )
    return threads


def _idle(before: dict[str, str], now: dict[str, str]) -> bool:
    """All threads have come up, and slept without a break since the last look."""
    return (
        len(now) >= _C.device_count()
        and before == now
        and all("State:\tS" in state for state in now.values())
    )


def _wait_for_autograd() -> None:
    before = _autograd_threads()
    deadline = time.monotonic() + _LIMIT_SECONDS
    while before and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)  # gives the lock away
        now = _autograd_threads()
        if _idle(before, now):
            return
        before = now


def register() -> None:
    """Called once, when the device is registered."""
    atexit.register(memory._at_exit)
    atexit.register(_wait_for_autograd)
