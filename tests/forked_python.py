"""Programs, each in a process of its own, without importing torch for each: one interpreter has it and forks them all.

Importing torch costs two seconds of a core; hundreds of tests want an interpreter of their own. What is forked has never
used a device, so a program starts as in a fresh interpreter, with its own arguments, environment, folder and streams, runs as
`__main__`, and goes through the end of the interpreter as any program does. torch's autoload of devices runs in the child, as
its environment says. What a test says about the import of torch itself needs a real interpreter: `subprocess`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ended", "clean_environment", "run_module", "run_program"]

_OURS = (
    "DITORCH_",
    "DIPU_",
    "DIOPI_",
    "DLINFER_",
    "OP_",
    "AUTOCOMPARE_",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "RANK",
    "WORLD_SIZE",
)
_SERVER = r"""
import json, os, runpy, sys, types
import torch
sys.path[0] = ""
replies = os.fdopen(int(sys.argv[1]), "w")
for line in sys.stdin:
    work = json.loads(line)
    pid = os.fork()
    if pid == 0:
        replies.close()
        os.setsid()
        os.chdir(work["folder"])
        os.environ.clear()
        os.environ.update(work["environment"])
        sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for path, descriptor in ((work["out"], 1), (work["err"], 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        if torch._is_device_backend_autoload_enabled():
            torch._import_device_backends()
        sys.argv = work["arguments"]
        if work["module"]:
            runpy.run_module(work["module"], run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(work["code"], "<string>", "exec"), vars(main))
        sys.exit(0)
    print(pid, file=replies, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=replies, flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a program ended and what it printed."""

    code: int
    out: str
    err: str


class _Server:
    """The interpreter that forks; one a process."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self._replies = os.fdopen(reading)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(writing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            pass_fds=(writing,),
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            },
        )
        os.close(writing)
        atexit.register(self.close)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self, timeout: float, **work: object) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        pid = int(self._replies.readline())
        in_time = select.select([self._replies], [], [], timeout)[0]
        if not in_time:
            os.killpg(pid, signal.SIGKILL)
        code = int(self._replies.readline())
        if not in_time:
            raise TimeoutError(f"the program did not end within {timeout:g} s: {work['arguments']}")
        return code


@functools.cache
def _server(_pid: int) -> _Server:
    return _Server()


def clean_environment(**settings: str) -> dict[str, str]:
    """This process's environment without any setting of ours, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {"OMP_NUM_THREADS": "1", **kept, **settings}


def run_program(
    code: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    timeout: float = 240.0,
) -> Ended:
    """Run code as `python -c CODE ARGUMENTS` does."""
    return _run("", textwrap.dedent(code), ["-c", *arguments], environment, folder, timeout)


def run_module(
    module: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    timeout: float = 240.0,
) -> Ended:
    """Run a module as `python -m MODULE ARGUMENTS` does."""
    return _run(module, "", [module, *arguments], environment, folder, timeout)


def _run(
    module: str,
    code: str,
    arguments: list[str],
    environment: Mapping[str, str] | None,
    folder: str | Path | None,
    timeout: float,
) -> Ended:
    with tempfile.TemporaryDirectory(prefix="forked-python-") as streams:
        out, err = Path(streams, "out"), Path(streams, "err")
        returned = _server(os.getpid()).run(
            timeout,
            module=module,
            code=code,
            arguments=arguments,
            environment=dict(clean_environment() if environment is None else environment),
            folder=str(folder or Path.cwd()),
            out=str(out),
            err=str(err),
        )
        return Ended(returned, out.read_text(errors="replace"), err.read_text(errors="replace"))
