"""Programs, each in a process of its own, without importing torch for each: one interpreter has it and forks them all.

Importing torch costs two seconds of a core; hundreds of tests want an interpreter of their own. What is forked has never
used a device, so a program starts as in a fresh interpreter, with its own arguments, environment, folder and streams, runs as
`__main__`, and goes through the end of the interpreter as any program does. torch's autoload of devices runs in the child, as
its environment says. What a test says about the import of torch itself, or about a variable that Python or the
loader reads at its start, needs a real interpreter: `subprocess`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

__all__ = ["clean_environment", "run_python", "run_ranks"]

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
import importlib, json, multiprocessing.process, os, runpy, sys, types
import torch
for name in sys.argv[2:]:
    importlib.import_module(name)
replies = os.fdopen(int(sys.argv[1]), "w")

def paths():
    return [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]

common = [path for path in sys.path[1:] if path not in paths()]

def run(first, *arguments):
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-m":
        sys.argv = list(arguments)
        runpy._run_module_as_main(arguments[0])
        return
    if first == "-c":
        code, name = arguments[0], "<string>"
        sys.argv = ["-c", *arguments[1:]]
    else:
        main.__file__ = name = os.path.abspath(first)
        with open(name) as file:
            code = file.read()
        sys.argv = [first, *arguments]
        sys.path[0] = os.path.dirname(name)
    exec(compile(code, name, "exec"), vars(main))

for line in sys.stdin:
    work = json.loads(line)
    pid = os.fork()
    if pid == 0:
        replies.close()
        os.setsid()
        os.chdir(work["folder"])
        multiprocessing.process.ORIGINAL_DIR = work["folder"]  # where spawned processes look for the main module
        os.environ.clear()
        os.environ.update(work["environment"])
        sys.path[:] = ["", *dict.fromkeys(paths()), *common]
        os.dup2(os.open(work["input"], os.O_RDONLY), 0)
        for path, descriptor in ((work["out"], 1), (work["err"], 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        sys.stdin = open(0, closefd=False)
        if torch._is_device_backend_autoload_enabled():
            torch._import_device_backends()
        run(*work["arguments"])
        sys.exit(0)
    print(pid, file=replies, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=replies, flush=True)
"""


class _Server:
    """The interpreter that forks."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        reading, writing = os.pipe()
        self._replies = os.fdopen(reading)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(writing), *preload],
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
def _server(_pid: int, preload: tuple[str, ...]) -> _Server:
    return _Server(preload)


def clean_environment(**settings: str) -> dict[str, str]:
    """This process's environment without any setting of ours, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {"OMP_NUM_THREADS": "1", **kept, **settings}


def run_python(
    *arguments: str | Path,
    env: Mapping[str, str | Path] | None = None,
    cwd: str | Path | None = None,
    input: str = "",
    timeout: float = 240.0,
    check: bool = False,
    preload: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *arguments], ...)` with text captured: `-c CODE`, `-m MODULE` or a file, and words.

    Modules to preload are in the interpreter that forks, as torch is: for many programs that import the same.
    """
    words = [textwrap.dedent(str(argument)) for argument in arguments]
    with tempfile.TemporaryDirectory(prefix="forked-python-") as streams:
        given, out, err = (Path(streams, name) for name in ("input", "out", "err"))
        given.write_text(input)
        code = _server(os.getpid(), preload).run(
            timeout,
            arguments=words,
            environment={name: str(value) for name, value in (os.environ if env is None else env).items()},
            folder=str(cwd or Path.cwd()),
            input=str(given),
            out=str(out),
            err=str(err),
        )
        done = subprocess.CompletedProcess(
            ["python", *words], code, out.read_text(errors="replace"), err.read_text(errors="replace")
        )
    if check:
        done.check_returncode()
    return done


_RANKS = """
import os, sys
code = sys.argv.pop(1)
children = []
for rank in range(int(os.environ["WORLD_SIZE"])):
    children.append(os.fork())
    if not children[-1]:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        exec(compile(code, "<string>", "exec"))
        sys.exit(0)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def run_ranks(
    code: str,
    *arguments: str,
    env: Mapping[str, str],
    cwd: Path,
    processes: int = 2,
    preload: tuple[str, ...] = (),
) -> str:
    """What the processes of one job print; torchrun would import torch once more for itself and for each of them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    environment = {**env, "OMP_NUM_THREADS": "1", **job, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = ("-c", _RANKS, textwrap.dedent(code), *arguments)
    done = run_python(*words, cwd=cwd, env=environment, timeout=200, preload=preload)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout
