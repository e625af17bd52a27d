"""Commands of ditorch, and programs beside packages of vendors: each in a process of its own, forked where torch is loaded."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from forked_python import clean_environment, run_python

STANDINS = Path(__file__).parent / "standins"

needs_no_card = pytest.mark.skipif(
    torch.backends.cuda.is_built() and torch.cuda.device_count() > 0,
    reason="what is chosen, and who is told, differs on a machine with a card",
)


def run_commands(
    folder: Path, *commands: Sequence[str], settings: Mapping[str, str] | None = None
) -> list[CompletedProcess[str]]:
    """Run `ditorch <words>` for each list of words, one after the other, in the given folder."""
    environment = clean_environment(**settings or {})
    program = "import sys\nfrom _ditorch import cli\ncli.app(sys.argv[1:])"
    return [run_python("-c", program, *words, env=environment, cwd=folder) for words in commands]


@dataclass(frozen=True)
class Program:
    """Code, the settings it runs with, and the stand-ins that are installed for it."""

    code: str
    settings: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()


def without_cards(**settings: str) -> dict[str, str]:
    """This process's environment without any setting of ours, and without cards where torch could use some."""
    kept = clean_environment()
    kept.pop("CUDA_VISIBLE_DEVICES", None)
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if torch.backends.cuda.is_built() else {}
    return {**kept, **hidden, **settings}


def installed(folder: Path, *packages: str) -> str:
    """A path for Python in which just these stand-ins are installed in front."""
    made = folder / ("with_" + "_".join(packages))
    if not made.exists():
        made.mkdir(parents=True)
        for package in (*packages, "chip_driver.py"):
            (made / package).symlink_to(STANDINS / package)
    return os.pathsep.join([str(made), *filter(None, [os.environ.get("PYTHONPATH")])])


def run_all(programs: Mapping[str, Program], *, autoload: bool = True) -> dict[str, CompletedProcess[str]]:
    """Run the programs one after the other; `autoload` is whether `import torch` registers dipu."""
    ended = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, program in programs.items():
            path = {"PYTHONPATH": installed(folder, *program.packages)} if program.packages else {}
            settings = {"TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload)), **path, **program.settings}
            ended[title] = run_python("-c", program.code, env=without_cards(**settings), cwd=folder)
    return ended
