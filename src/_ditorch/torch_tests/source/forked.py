"""A case in a process of its own, forked from one that has imported the file: no import is paid twice.

Only where a forked child can use the device: the threads and handles of most do not come along.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from _ditorch.torch_tests.model import State
from _ditorch.torch_tests.processes import die_with_parent, tail
from _ditorch.torch_tests.source.model import CaseOutcome

__all__ = ["can_fork", "run_forked"]

_PROBE_SECONDS = 30.0


def can_fork(device: str, log: Path) -> bool:
    """Tried, not assumed: can a forked child use the device after what importing the file has done here?"""
    if threading.active_count() > 1:
        return False

    def probe() -> CaseOutcome:
        numbers = torch.ones(4, device=device, requires_grad=True)
        (numbers * 3).sum().backward()
        right = numbers.grad is not None and numbers.grad.tolist() == [3.0] * 4
        return CaseOutcome(State.PASSED if right else State.FAILED, 0.0)

    return run_forked(probe, _PROBE_SECONDS, log).state is State.PASSED


def run_forked(run: Callable[[], CaseOutcome], seconds: float, log: Path) -> CaseOutcome:
    """`run` in a child; a crash or a hang is the child's alone."""
    start = time.monotonic()
    said = log.stat().st_size if log.exists() else 0
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _in_child(run, reading, writing)
    os.close(writing)
    try:
        data, in_time = _read(reading, start + seconds)
    finally:
        os.close(reading)
        status = _end(child)
    took = time.monotonic() - start
    if not in_time:
        return CaseOutcome(State.TIMEOUT, took, f"timed out after {seconds:g} s", _said(log, said))
    try:
        outcome: CaseOutcome = pickle.loads(data)
    except Exception:  # it died before it had said everything
        return CaseOutcome(State.CRASH, took, _death(status), _said(log, said))
    return outcome


def _in_child(run: Callable[[], CaseOutcome], reading: int, writing: int) -> None:
    """Never returns: what the parent was about to do is not the child's business."""
    code = 1
    try:
        os.setsid()  # whatever the test starts can be ended with it
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(reading)
        data = pickle.dumps(run())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
        code = 0
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _read(descriptor: int, until: float) -> tuple[bytes, bool]:
    """Everything up to the end, and whether the end came in time."""
    data = b""
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return data, False
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return data, True
        data += piece


def _end(child: int, grace: float = 0.5) -> int:
    """End the child if it still runs, and what it may have started; its status."""
    status = None
    deadline = time.monotonic() + grace
    while status is None and time.monotonic() < deadline:
        found, code = os.waitpid(child, os.WNOHANG)
        status = code if found else None
        time.sleep(0 if found else 0.001)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] if status is None else status


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"crashed (signal {number}, {signal.Signals(number).name})"
    return f"left with exit code {os.waitstatus_to_exitcode(status)}"


def _said(log: Path, before: int) -> str:
    """What the child added to the log."""
    added = (log.stat().st_size if log.exists() else 0) - before
    return tail(log, min(added, 4000)) if added > 0 else ""
