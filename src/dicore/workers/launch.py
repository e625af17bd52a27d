"""How a worker process is started: on its own, or forked from a process that has imported what is slow to import."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Child", "ForkServer", "Process", "environment_of"]

_HOME = str(Path(__file__).resolve().parents[2])


class Child:
    """A worker process that this process started."""

    def __init__(self, descriptor: int, environment: dict[str, str], folder: str | None) -> None:
        self._process = subprocess.Popen(
            _command("worker", descriptor),
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            start_new_session=True,  # Ctrl-C is for the parent
        )

    def kill(self) -> None:
        self._process.kill()

    def exit_code(self, timeout: float) -> int | None:
        """None: it still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None


class ForkServer:
    """A process that has imported some modules and forks workers, so that an import is paid once."""

    def __init__(self, modules: Sequence[str], environment: dict[str, str], folder: str | None) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [*_command("forkserver", theirs.fileno()), *modules],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self._codes: dict[int, int] = {}

    def fork(self, descriptor: int) -> Forked:
        """Start a worker on a connection. Raises OSError when the server is gone."""
        socket.send_fds(self._control, [b"fork"], [descriptor])
        while (message := self._read(None)) is not None:
            if "started" in message:
                return Forked(self, message["started"])
        raise ConnectionResetError("the process that workers are forked from is gone")

    def kill(self, pid: int) -> None:
        with suppress(OSError):
            self._control.send(json.dumps({"kill": pid}).encode())

    def exit_code(self, pid: int, timeout: float) -> int | None:
        until = time.monotonic() + timeout
        while pid not in self._codes:
            left = until - time.monotonic()
            if left <= 0 or self._read(left) is None:
                return None
        return self._codes[pid]

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _read(self, timeout: float | None) -> dict[str, int] | None:
        self._control.settimeout(timeout)
        try:
            data = self._control.recv(4096)
        except OSError:
            return None
        if not data:
            return None
        message: dict[str, int] = json.loads(data)
        if "ended" in message:
            self._codes[message["ended"]] = message["code"]
        return message


@dataclass
class Forked:
    """A worker process that the fork server started."""

    server: ForkServer
    pid: int

    def kill(self) -> None:
        self.server.kill(self.pid)

    def exit_code(self, timeout: float) -> int | None:
        return self.server.exit_code(self.pid, timeout)


def _command(role: str, descriptor: int) -> list[str]:
    # -P: a json.py in the working folder is not for us to import.
    return [sys.executable, "-P", "-m", "dicore.workers", role, str(descriptor)]


Process = Child | Forked


def environment_of(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This process's, with the changes, and with this very package on the path of a Python that starts elsewhere."""
    environment = {**os.environ, **{name: value for name, value in changes.items() if value is not None}}
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
    paths = dict.fromkeys([_HOME, *environment.get("PYTHONPATH", "").split(os.pathsep)])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment
