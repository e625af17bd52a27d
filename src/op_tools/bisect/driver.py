"""The process of one run: `python -m op_tools.bisect.driver JOB.json` runs the script unchanged, with tools around it.

The job says which script and arguments, which operators go to the CPU, and where to write what was seen. The exit code
is the script's.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import io
import json
import os
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

__all__ = ["Job", "main", "run_script"]


class Job(TypedDict):
    """What the process is told."""

    script: str
    arguments: list[str]
    imports: list[str]  # modules that come before the script
    fallback: list[str] | None  # None: everything
    operators: str | None  # the file for the names of operators seen
    stayed: str  # the file for operators that the CPU could not run
    results: str | None  # the folder for what OpAutoCompare finds


def main(job_file: str) -> None:
    """Start the tools, run the script as Python would, stop the tools."""
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    for module in job["imports"]:
        importlib.import_module(module)
    tools = _tools(job)
    for tool in tools:
        tool.start()
    try:
        run_script(job["script"], job["arguments"])
    finally:
        for tool in reversed(tools):
            tool.stop()
        _note_stayed(tools, job["stayed"])


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Run a file as `python FILE ARGUMENTS` does.

    runpy takes the module away again when the script has run and makes no difference between argv[0], which is as
    given, and __file__, which is absolute; threads, pickles and exit handlers of the script may need both.
    """
    path = os.path.abspath(script)
    # This process was started without a folder in front of the path; the script expects its own there.
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    sys.argv = [script, *arguments]
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main_module = types.ModuleType("__main__")
    main_module.__file__ = path
    main_module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    main_module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)


def _tools(job: Job) -> list[Any]:
    from op_tools.bisect.watching import AtenCompare, AtenFallback, OperatorsSeen

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


def _note_stayed(tools: list[Any], file: str) -> None:
    stayed = {name: reason for tool in tools for name, reason in getattr(tool, "stayed", {}).items()}
    if stayed:
        Path(file).write_text(json.dumps(stayed), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
