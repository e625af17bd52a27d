"""The process of one run: `python -m op_tools.bisect.driver JOB.json` runs a program unchanged, with tools on.

The job says which script or module and arguments, which operators go to the CPU, and where to write what was seen. The exit code
is the program's. The tools work at ATen level only and print nothing: standard output belongs to the program's result.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any, TypedDict

from dicore.main_module import CannotRun, expect_module, prepare_module, prepare_script
from op_tools.engine import Call
from op_tools.tool import Tool
from op_tools.tools.autocompare import OpAutoCompare
from op_tools.tools.fallback import OpFallback

__all__ = ["AtenCompare", "AtenFallback", "BisectJob", "OperatorsSeen", "main"]


class BisectJob(TypedDict):
    """What the process is told."""

    target: str  # a script, or the name of a module
    module: bool
    arguments: list[str]
    imports: list[str]  # modules that come before the program
    refused: str  # the file that says why the program was not started
    fallback: list[str] | None  # None: everything
    operators: str | None  # the file for the names of operators seen
    stayed: str  # the file for operators that the CPU could not run
    results: str | None  # the folder for what OpAutoCompare finds


def main(job_file: str) -> None:
    """Start the tools, run the program as Python would, stop the tools."""
    job: BisectJob = json.loads(Path(job_file).read_text(encoding="utf-8"))
    try:
        # What these print is not the program's: its result is read from standard output.
        with contextlib.redirect_stdout(sys.stderr):
            for name in job["imports"]:
                importlib.import_module(name)
        if job["module"]:
            expect_module(job["target"], job["arguments"], ours_is_first=False)
    except (ImportError, CannotRun, ValueError) as error:
        Path(job["refused"]).write_text(str(error), encoding="utf-8")
        raise
    tools = _tools(job)
    for tool in tools:
        tool.start()
    try:
        # This process was started without a folder in front of the path; the program expects its own there.
        is_module, target = job["module"], job["target"]
        program = prepare_module(target) if is_module else prepare_script(target, ours_is_first=False)
        program.run(job["arguments"])
    finally:
        for tool in reversed(tools):
            tool.stop()
        stayed = {name: why for tool in tools for name, why in getattr(tool, "stayed", {}).items()}
        if stayed:
            Path(job["stayed"]).write_text(json.dumps(stayed), encoding="utf-8")


class _Silent(Tool):
    uses_api = False

    def say(self, text: str) -> None:
        """Say nothing."""

    @staticmethod
    def _device_types(text: str) -> frozenset[str] | None:
        # The device may be one that the script registers later, so whether there is one is not asked now: all but the CPU.
        return None if text.strip() in {"", "auto"} else Tool._device_types(text)


class AtenFallback(_Silent, OpFallback):
    """OpFallback for names at ATen level."""


class OperatorsSeen(_Silent, OpFallback):
    """Notes which operators OpFallback could take. Each name is written at once: the script may crash in the operator."""

    executes = False
    wants_ties = False

    def __init__(self, file: str, **settings: Any) -> None:
        super().__init__(list=".*", disable_list="", **settings)
        self.file = Path(file)
        self.seen: set[str] = set()

    def before(self, call: Call) -> None:
        if call.name not in self.seen:
            self.seen.add(call.name)
            with self.file.open("a", encoding="utf-8") as names:
                names.write(f"{call.name}\n")


class AtenCompare(_Silent, OpAutoCompare):
    """OpAutoCompare for every operator at ATen level, so that its rows name kernels and not API calls."""

    aten_everywhere = True


def _tools(job: BisectJob) -> list[Any]:
    tools: list[Any] = []
    names = job["fallback"]
    if names is None or names:
        listed = ".*" if names is None else ",".join(map(re.escape, names))
        tools.append(AtenFallback(list=listed, disable_list="", verbose=False))
    if job["operators"] is not None:
        tools.append(OperatorsSeen(job["operators"], verbose=False))
    if job["results"] is not None:
        settings = {"list": ".*", "disable_list": "", "mode": "changed", "save_failures": 0}
        tools.append(AtenCompare(results=job["results"], verbose=False, **settings))
    return tools


if __name__ == "__main__":
    main(sys.argv[1])
