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

import torch

from dicore.main_module import CannotRun, expect_module, prepare_module, prepare_script
from op_tools.categories import category_of
from op_tools.engine import Call
from op_tools.tool import Tool
from op_tools.tools.autocompare import OpAutoCompare
from op_tools.tools.fallback import OpFallback
from op_tools.trees import tensors_of

__all__ = ["AtenCompare", "AtenFallback", "BisectJob", "OperatorsSeen", "PerturbedFallback", "main"]

# What rounds: copies, comparisons and positions are exact everywhere.
_ARITHMETIC = frozenset({"elementwise", "reduction", "matmul", "other"})


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
    every: bool  # judge every call, and not the first of each signature only
    perturb: bool  # change what the CPU computes by a rounding


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


class PerturbedFallback(AtenFallback):
    """The same with one rounding more in each result: what that makes of the program's result is no fault."""

    def opened(self) -> None:
        super().opened()
        self._generator = torch.Generator().manual_seed(0)

    def _on_cpu(self, call: Call) -> Any:
        result = super()._on_cpu(call)
        if category_of(call.func, call.name) in _ARITHMETIC:
            for tensor in tensors_of(result):
                if tensor.is_floating_point() and tensor.layout is torch.strided:
                    self._perturb(tensor)
        return result

    def _perturb(self, tensor: torch.Tensor) -> None:
        near = tensor.detach().to("cpu", torch.float64)
        noise = torch.rand(near.shape, dtype=torch.float64, generator=self._generator) * 2 - 1
        tensor.detach().copy_((near * (1 + noise * torch.finfo(tensor.dtype).eps)).to(tensor.dtype))


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
    """OpAutoCompare for every operator at ATen level, so that its rows name kernels and not API calls.

    API calls are context: a kernel of backward knows the line of the program that its forward call stands in.
    """

    uses_api = True
    aten_everywhere = api_is_context = True

    def wants_api(self, name: str, func: Any) -> bool:
        return False

    def wants_parent(self, name: str) -> bool:
        return True


def _tools(job: BisectJob) -> list[Any]:
    tools: list[Any] = []
    names = job["fallback"]
    if names is None or names:
        listed = ".*" if names is None else ",".join(map(re.escape, names))
        kind = PerturbedFallback if job["perturb"] else AtenFallback
        tools.append(kind(list=listed, disable_list="", verbose=False))
    if job["operators"] is not None:
        tools.append(OperatorsSeen(job["operators"], verbose=False))
    if job["results"] is not None:
        mode = "every" if job["every"] else "changed"
        settings = {"list": ".*", "disable_list": "", "mode": mode, "save_failures": 0}
        tools.append(AtenCompare(results=job["results"], verbose=False, **settings))
    return tools


if __name__ == "__main__":
    main(sys.argv[1])
