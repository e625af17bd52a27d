"""Entry points for workers of the tests: each misbehaves on demand."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dicore.workers import Retire, Service


def start(group: str, setup: Any) -> Service:
    """`setup` is a dict: what goes wrong while starting, and where to note that the worker closed in order."""
    setup = setup or {}
    match setup.get("start"):
        case "raises":
            raise ValueError("no such library")
        case "dies":
            os._exit(7)
        case "hangs":
            time.sleep(600)
    closed = setup.get("closed")

    def close() -> None:
        if closed:
            Path(closed, str(os.getpid())).write_text("closed")

    return Service(run, facts={"group": group, "pid": os.getpid(), "argv": sys.argv[:1]}, close=close)


def run(task: Any) -> Any:  # noqa: PLR0912 - one branch for each way to misbehave
    what, value = task
    match what:
        case "double":
            return 2 * value
        case "pid":
            return os.getpid()
        case "environment":
            return os.environ.get(value)
        case "modules":
            return value in sys.modules
        case "raise":
            raise KeyError(value)
        case "unsendable":
            return lambda: value
        case "abort":
            print(f"assertion {value} failed", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGABRT)
        case "exit":
            os._exit(value)
        case "hang":
            if value:
                Path(value).write_text(str(os.getpid()))
            time.sleep(600)
        case "count":
            return count(*value)
        case "hang after progress":
            return hang_after(value)
        case "retire":
            return Retire(os.getpid())
    raise AssertionError(what)


def count(end: int, fatal: int | None) -> Iterator[int]:
    for number in range(end):
        if number == fatal:
            os.kill(os.getpid(), signal.SIGSEGV)
        yield number
    return end * 100


def hang_after(message: Any) -> Iterator[Any]:
    yield message
    time.sleep(600)
