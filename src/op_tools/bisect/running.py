"""Runs the program in a process of its own and collects what came of it: its result, and which operators are suspected."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from op_tools.bisect.driver import BisectJob
from op_tools.bisect.readings import Reading
from op_tools.runs import BadInput, open_run
from op_tools.verdict import is_label

__all__ = ["FAILED", "LABELLED", "MAPPING", "Runner", "ScriptRun", "Suspicion", "suspicions"]

# The package that maps the names of cuda onto the device: it may be installed beside this one.
MAPPING = "ditorch"

_LONGEST_LINE = 300


# How much what OpAutoCompare found of an operator counts against it.
FAILED, LABELLED = 2, 1


@dataclass(frozen=True)
class Suspicion:
    """The worst that was found of an operator."""

    verdict: str
    error_over_bound: float
    reason: str = ""
    call_site: str = ""

    @property
    def weight(self) -> tuple[int, float]:
        """The heavier, the more likely the operator is at fault."""
        kind = FAILED if self.verdict == "fail" else LABELLED if is_label(self.verdict) else 0
        return kind, self.error_over_bound


def suspicions(folder: Path) -> dict[str, Suspicion]:
    """The worst of each operator at ATen level in a results folder; nothing if there are no results."""
    try:
        rows = list(open_run(folder).rows("autocompare"))
    except BadInput:  # the script ended before anything was judged: then nothing is suspected
        return {}
    worst: dict[str, Suspicion] = {}
    for row in rows:
        if row.get("level") != "aten":
            continue
        name = str(row.get("name", "")).partition(" ")[0]
        found = Suspicion(
            str(row.get("verdict", "")),
            _size(row.get("error_over_bound")),
            str(row.get("reason", "")),
            str(row.get("call_site", "")),
        )
        if name not in worst or found.weight > worst[name].weight:
            worst[name] = found
    return worst


def _size(value: object) -> float:
    if not isinstance(value, int | float):
        return 0.0
    return math.inf if math.isnan(value) else float(value)


@dataclass
class ScriptRun:
    """One run: what was on the CPU, how it ended, what came out."""

    number: int
    fallback: tuple[str, ...] | None  # None: everything
    code: int
    seconds: float
    result: tuple[float, ...] = ()
    problem: str = ""  # why it did not end well; empty if it did
    seen: tuple[str, ...] = ()
    stayed: dict[str, str] = field(default_factory=dict)
    found: dict[str, Suspicion] = field(default_factory=dict)
    restored: bool | None = None  # not asked of the first two
    perturbed: bool = False
    every: bool = False  # every call was judged

    @property
    def ended_well(self) -> bool:
        """Whether the script came to its end with exit code 0."""
        return not self.problem


class Runner:
    """Runs one script or module with other operators on the CPU each time. Files of run 3 go to <folder>/run-03/."""

    def __init__(
        self,
        script: str | Path,
        arguments: Sequence[str],
        reading: Reading,
        folder: Path,
        timeout: float | None = None,
        imports: Sequence[str] = (),
        *,
        module: bool = False,
    ) -> None:
        self.script = str(script)
        self.module = module
        self.arguments = list(arguments)
        self.reading = reading
        self.folder = folder
        self.timeout = timeout
        self.imports = list(imports)
        self.count = 0

    def run(
        self,
        fallback: Sequence[str] | None,
        *,
        observe: bool = False,
        compare: bool = False,
        every: bool = False,
        perturb: bool = False,
    ) -> ScriptRun:
        """Run the script with these operators on the CPU (None: everything that can be).

        `compare`: judge the operators, at the first call of each signature or (`every`) at every call. `perturb`: change what the
        CPU computes by a rounding.
        """
        self.count += 1
        folder = self._new_folder()
        job = BisectJob(
            target=self.script,
            module=self.module,
            arguments=self.arguments,
            imports=self.imports,
            refused=str(folder / "refused.txt"),
            fallback=None if fallback is None else list(fallback),
            operators=str(folder / "operators.txt") if observe else None,
            stayed=str(folder / "stayed.json"),
            results=str(folder / "compared") if compare else None,
            every=every,
            perturb=perturb,
        )
        (folder / "job.json").write_text(json.dumps(job, indent=1), encoding="utf-8")
        stamp = self._stamp()
        began = time.monotonic()
        code, in_time = self._execute(folder)
        self._check_was_started(folder / "refused.txt")
        on_cpu = None if fallback is None else tuple(fallback)
        done = ScriptRun(self.count, on_cpu, code, time.monotonic() - began, perturbed=perturb, every=every)
        done.problem = self._problem(code, in_time, folder / "stderr.txt")
        if done.ended_well and (self.reading.file is None or self._stamp() != stamp):
            done.result = self.reading.read(_text(folder / "stdout.txt"))
        done.seen = tuple(dict.fromkeys(_text(folder / "operators.txt").split()))
        done.stayed = json.loads(_text(folder / "stayed.json") or "{}")
        done.found = suspicions(folder / "compared") if compare else {}
        return done

    def _check_was_started(self, refused: Path) -> None:
        """A program that could not be started is no run: all others would end as this one."""
        if problem := _text(refused):
            hint = f" {MAPPING} maps the names of cuda; to run without it, give --no-{MAPPING}."
            raise BadInput(f"{problem}{hint if MAPPING in self.imports else ''}")

    def _new_folder(self) -> Path:
        folder = self.folder.resolve() / f"run-{self.count:02}"
        try:
            # An earlier search may have used this folder.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            raise BadInput(
                f"the files of the runs cannot be written to {folder}: {error.strerror}. Give another --keep."
            ) from error
        return folder

    def _stamp(self) -> tuple[int, int] | None:
        """Tells whether the script has written its result file: one left from before is no result of this run."""
        if self.reading.file is None:
            return None
        try:
            about = self.reading.file.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_ino

    def _execute(self, folder: Path) -> tuple[int, bool]:
        # -P: the folder we are in must not hide a module from the driver; it gives the script its own path.
        command = [sys.executable, "-P", "-m", "op_tools.bisect.driver", str(folder / "job.json")]
        # What a run has printed is wanted even when it has to be killed.
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OP_TOOLS_RESULTS": str(folder / "results")}
        with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as err:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
            )  # fmt: skip
            try:
                return process.wait(self.timeout), True
            except subprocess.TimeoutExpired:
                return -signal.SIGKILL, False
            finally:
                # Whatever happened, nothing the script started goes on running behind the next run.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _problem(self, code: int, in_time: bool, errors: Path) -> str:
        if not in_time:
            return f"ended after --timeout {self.timeout:g} s"
        if code == 0:
            return ""
        if code < 0:
            return f"killed by {_signal_name(-code)}"
        printed = (line for line in _text(errors).splitlines() if line.strip())
        # What the mapping says of the device it found, and the tools of themselves, is no reason.
        lines = [line for line in printed if not line.startswith((f"{MAPPING}.framework", "op_tools: "))]
        said = f": {lines[-1].strip()[:_LONGEST_LINE]}" if lines else ""
        return f"exit code {code}{said}"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
