"""A case in a process of its own, forked from one that has imported the file: no import is paid twice.

Only where a forked child can use the device: the threads and handles of most do not come along.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from _ditorch.torch_tests.outcomes import CaseOutcome, State
from dicore.workers import describe_exit, die_with_parent, tail

__all__ = ["can_fork", "run_forked"]

_PROBE_SECONDS = 30.0


def can_fork(device: str) -> bool:
    """Tried, not assumed: can a forked child use the device after what importing the file has done here?"""
    if threading.active_count() > 1:
        return False

    def probe() -> CaseOutcome:
        numbers = torch.ones(4, device=device, requires_grad=True)
        (numbers * 3).sum().backward()
        right = numbers.grad is not None and numbers.grad.tolist() == [3.0] * 4
        return CaseOutcome(State.PASSED if right else State.FAILED, 0.0)

    return run_forked(probe, _PROBE_SECONDS).state is State.PASSED


def run_forked(run: Callable[[], CaseOutcome], seconds: float) -> CaseOutcome:
    """`run` in a child; a crash or a hang is the child's alone."""
    with tempfile.NamedTemporaryFile(prefix="torch-tests-", suffix=".log") as log:
        return _run_forked(run, seconds, Path(log.name))


def _run_forked(run: Callable[[], CaseOutcome], seconds: float, log: Path) -> CaseOutcome:
    start = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _in_child(run, reading, writing, log)
    os.close(writing)
    try:
        data, in_time = _read(reading, start + seconds)
    finally:
        os.close(reading)
        status = _end(child)
    took = time.monotonic() - start
    if not in_time:
        return CaseOutcome(State.TIMEOUT, took, f"timed out after {seconds:g} s", tail(log))
    try:
        outcome: CaseOutcome = pickle.loads(data)
    except Exception:  # it died before it had said everything
        return CaseOutcome(State.CRASH, took, describe_exit(os.waitstatus_to_exitcode(status)), tail(log))
    return outcome


def _in_child(run: Callable[[], CaseOutcome], reading: int, writing: int, log: Path) -> None:
    """Never returns: what the parent was about to do is not the child's business."""
    code = 1
    try:
        os.setsid()  # whatever the test starts can be ended with it
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(reading)
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)  # where the worker has told faulthandler to write
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
