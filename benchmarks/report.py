"""What a benchmark hands to the runner, the environment it ran in, and how both are printed and stored."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Options:
    """The runner's options as a benchmark sees them."""

    quick: bool = False
    device: str = "dipu"
    # Parts and rows of a benchmark that has several; none: all.
    only: tuple[str, ...] = ()
    threads: int | None = None
    dtype: str | None = None
    # Called with one line whenever a case is done, so that a long benchmark is not silent.
    say: Callable[[str], None] = print


@dataclass
class Case:
    """One row: the figure, the target it is held against (if any), and every number behind it."""

    name: str
    figure: float
    cells: list[str]
    target: float | None = None
    raw: dict[str, Any] = field(default_factory=dict)
    bound: ClassVar[str] = "<="

    @property
    def missed(self) -> bool:
        if self.target is None:
            return False
        return self.figure > self.target if self.bound == "<=" else self.figure < self.target

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return f"{'missed' if self.missed else 'met'} ({self.bound} {self.target:g})"


class Speedup(Case):
    """A case whose figure must be large."""

    bound = ">="


@dataclass
class Report:
    title: str
    columns: list[str]
    cases: list[Case]
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def missed(self) -> list[str]:
        return [case.name for case in self.cases if case.missed]

    def print(self, console: Console) -> None:
        table = Table(title=self.title)
        table.add_column("case", no_wrap=True)
        for column in self.columns:
            table.add_column(column, justify="right")
        if any(case.target is not None for case in self.cases):
            table.add_column("target", no_wrap=True)
        for case in self.cases:
            style = "red" if case.missed else None
            cells = [case.name, *case.cells, case.verdict][: len(table.columns)]
            table.add_row(*cells, style=style)
        console.print(table)

    def as_json(self, benchmark: str) -> dict[str, Any]:
        cases = [{**asdict(case), "bound": case.bound, "missed": case.missed} for case in self.cases]
        for case in cases:
            del case["cells"]
        return {"benchmark": benchmark, "environment": environment(), "notes": self.notes, "cases": cases}


def git_revision() -> str:
    """The commit, with `+` when the tree had changes; `unknown` outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """Everything one needs to judge whether two results may be compared."""
    import torch

    settings = {k: v for k, v in sorted(os.environ.items()) if k.startswith(("DIPU_", "DITORCH_", "OMP_"))}
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": git_revision(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "settings": settings,
    }


def one_line_per_list_of_numbers(text: str) -> str:
    """Hundreds of rounds on one line each: a stored result stays readable, and so does the change of one."""
    return re.sub(r"\[\s*(-?\d[\d.,e\s+-]*?)\s*\]", lambda m: f"[{' '.join(m[1].split())}]", text)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Under a temporary name first: an interrupted run never leaves half a file behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(one_line_per_list_of_numbers(json.dumps(content, indent=1)) + "\n")
    temporary.replace(path)
