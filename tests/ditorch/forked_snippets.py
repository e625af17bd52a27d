"""Python programs, each in a process of its own, without importing torch for each: one interpreter forks them all.

A program runs as `__main__`, with its own settings and its own packages in front of the path, and goes through the
end of the interpreter as any program does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

STANDINS = Path(__file__).parent / "standins"

_DRIVER = """
import json, os, sys
import torch
ended = {}
for name, code, settings, path, out, err in json.loads(sys.stdin.readline()):
    pid = os.fork()
    if pid == 0:
        for key, value in settings.items():
            os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)
        sys.path[:0] = path
        sys.argv = [name]
        for file, descriptor in ((out, 1), (err, 2)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
        sys.exit()
    ended[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(ended))
"""

needs_no_card = pytest.mark.skipif(
    torch.backends.cuda.is_built() and torch.cuda.device_count() > 0,
    reason="what is chosen, and who is told, differs on a machine with a card",
)

_OURS = ("DITORCH_", "DIPU_", "TORCH_DEVICE_BACKEND_AUTOLOAD", "RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Program:
    """Code, the settings it runs with, and the stand-ins that are installed for it."""

    code: str
    settings: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a program ended and what it printed."""

    code: int
    out: str
    err: str


def environment(**settings: str) -> dict[str, str]:
    """This process's environment without any setting of ours, and without cards where torch could use some."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if torch.backends.cuda.is_built() else {}
    return {"OMP_NUM_THREADS": "1", **kept, **hidden, **settings}


def installed(folder: Path, *packages: str) -> Path:
    """A folder for the path in which just these stand-ins are installed."""
    made = folder / ("with_" + "_".join(packages))
    if not made.exists():
        made.mkdir(parents=True)
        for package in (*packages, "chip_driver.py"):
            (made / package).symlink_to(STANDINS / package)
    return made


def run_all(programs: Mapping[str, Program], *, autoload: bool = True) -> dict[str, Ended]:
    """Run the programs one after the other; `autoload` is whether `import torch` registers dipu."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = [
            (
                title,
                textwrap.dedent(program.code),
                dict(program.settings),
                [str(installed(folder, *program.packages))] if program.packages else [],
                str(folder / f"{number}.out"),
                str(folder / f"{number}.err"),
            )
            for number, (title, program) in enumerate(programs.items())
        ]
        settings = environment(TORCH_DEVICE_BACKEND_AUTOLOAD=str(int(autoload)))
        done = subprocess.run(
            [sys.executable, "-c", _DRIVER], input=json.dumps(work) + "\n", env=settings, capture_output=True,
            text=True, timeout=220, check=False, cwd=folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        codes = json.loads(done.stdout)
        return {
            title: Ended(codes[title], Path(out).read_text(), Path(err).read_text())
            for title, _, _, _, out, err in work
        }
