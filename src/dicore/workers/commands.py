"""Running a program of others, such as a compiler: with a time limit, after which its whole process group is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CommandResult", "run_command"]


@dataclass(frozen=True)
class CommandResult:
    """How a program ended. The code is negative for a signal, None where the time limit ended it."""

    code: int | None
    output: str
    """What it wrote, standard output and error in their order."""
    seconds: float


def run_command(
    command: Sequence[str],
    time_limit: float,
    *,
    folder: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> CommandResult:
    """Runs a program to its end. Raises OSError where it cannot be started.

    The program leads a group of its own: a compiler's driver has children, which must not outlive it.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        list(command),
        cwd=folder,
        env=None if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the parent
    )
    code: int | None
    try:
        output, _ = process.communicate(timeout=time_limit)
        code = process.returncode
    except subprocess.TimeoutExpired:
        _end_group(process.pid)
        output, _ = process.communicate()
        code = None
    except BaseException:  # Ctrl-C
        _end_group(process.pid)
        process.wait()
        raise
    return CommandResult(code, output.decode("utf-8", "replace"), time.monotonic() - start)


def _end_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
