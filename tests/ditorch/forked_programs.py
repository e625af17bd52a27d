"""Programs of this house, each in a process of its own, without importing torch for each: one interpreter forks them all.

A child goes through the end of the interpreter as any program does, so exit codes, exit handlers and tracebacks are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_DRIVER = """
import json, os, sys
import torch
from dicore import main_module
from _ditorch import cli, gates, run, run_tools
work = json.loads(sys.stdin.readline())
if any("--tool" in words or "--gate" in words for words, *_ in work):
    import op_tools.memory, op_tools.tools.autocompare, op_tools.tools.overflow_check, op_tools.tools.time_measure
ended = []
for words, folder, settings, out, err in work:
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(settings)
        for path, descriptor in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        cli.app(words)
    ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(json.dumps(ended))
"""
_OURS = (
    "DITORCH_",
    "DIOPI_",
    "DIPU_",
    "DLINFER_",
    "OP_",
    "AUTOCOMPARE_",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "RANK",
    "WORLD_SIZE",
)


@dataclass(frozen=True)
class Ended:
    """How a program ended and what it printed."""

    code: int
    out: str
    err: str


def clean_environment(**settings: str) -> dict[str, str]:
    """This process's environment without any setting of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {"OMP_NUM_THREADS": "1", **kept, **settings}


def run_all(folder: Path, *programs: Sequence[str], settings: dict[str, str] | None = None) -> list[Ended]:
    """Run `ditorch <words>` for each list of words, one after the other, in the given folder."""
    streams = [(folder / f"out{n}.txt", folder / f"err{n}.txt") for n in range(len(programs))]
    work = [
        (list(words), str(folder), settings or {}, str(out), str(err))
        for words, (out, err) in zip(programs, streams, strict=True)
    ]
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER], input=json.dumps(work) + "\n", env=clean_environment(), capture_output=True,
        text=True, timeout=200, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)
    return [
        Ended(code, out.read_text(), err.read_text()) for code, (out, err) in zip(codes, streams, strict=True)
    ]
