"""Functions that the tests of spreading name: right ones, and ones that take their process with them; and watching those."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def double(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Twice the number, after the seconds that the payload asks for; a line in `journal` for every run."""
    note(payload)
    time.sleep(payload.get("seconds", 0.0))
    return {"twice": 2 * payload["number"], "pid": os.getpid(), "folder": os.getcwd()}


def note(payload: Mapping[str, Any]) -> None:
    """One line for a run that began, in one write."""
    if "journal" in payload:
        with open(payload["journal"], "a", encoding="utf-8") as file:
            file.write(f"{payload['number']}\n")


def deadly(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Like `double`, and `kills` its process or its parent: always, or only where its marker is not there yet."""
    victim = {"self": os.getpid(), "parent": os.getppid()}.get(payload.get("kills", ""))
    marker = payload.get("marker")
    if victim is not None and not (marker and Path(marker).exists()):
        note(payload)
        if marker:
            Path(marker).write_bytes(b"")
        os.kill(victim, signal.SIGKILL)
        time.sleep(60)
    return double(payload)


def raises(payload: Mapping[str, Any]) -> dict[str, Any]:
    """An error like any other."""
    raise ValueError(f"number {payload['number']} is not good")


def not_plain(_: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON cannot hold."""
    return {"value": object()}


def hangs(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Says who it is and stays."""
    Path(payload["pid_file"]).write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(3600)
    return {}


def alive(pid: int) -> bool:
    """Whether the process is there and has not ended."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Look again until it is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
