"""A backend that lowers its graphs to the loop IR and interprets them: what the lowering is tested with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from dicp import registry
from dicp.backend import Backend, Runner
from dicp.dynamo_bridge.compile_fx import compile_fx
from dicp.loops.evaluate import evaluate_program
from dicp.loops.ir import KernelLaunch, LoopProgram, MatrixProduct, OperatorCall
from dicp.loops.verify import verify_program
from dicp.passes.lowering import lower, supports


class LoopBackend(Backend):
    """Keeps the programs that it made."""

    name = "loopgraph"

    def __init__(self) -> None:
        self.programs: list[LoopProgram] = []

    def supports(self, node: Node) -> bool:
        return supports(node)

    def compile(self, graph: GraphModule) -> Runner:
        program = lower(graph)
        verify_program(program)
        self.programs.append(program)
        return lambda *inputs: evaluate_program(program, inputs)

    @property
    def program(self) -> LoopProgram:
        """Of the one graph that was compiled."""
        (program,) = self.programs
        return program

    def calls(self) -> list[str]:
        """The operators that are called as they are."""
        return [
            str(step.operator)
            for program in self.programs
            for step in program.steps
            if isinstance(step, OperatorCall)
        ]

    def launches(self) -> int:
        """How many kernels run."""
        return sum(isinstance(step, KernelLaunch) for program in self.programs for step in program.steps)

    def products(self) -> int:
        return sum(isinstance(step, MatrixProduct) for program in self.programs for step in program.steps)


def use_loops(monkeypatch: pytest.MonkeyPatch) -> tuple[LoopBackend, Callable[..., Any]]:
    """The backend and torch.compile with it; nothing falls back."""
    backend = LoopBackend()
    monkeypatch.setitem(registry._REGISTERED, backend.name, backend)
    monkeypatch.setenv("DICP_FALLBACK", "unsupported")

    def loopgraph(gm, inputs, **kwargs):
        return compile_fx(gm, inputs, "loopgraph", **kwargs)

    def compiled(function, **kwargs):
        return torch.compile(function, backend=loopgraph, **kwargs)

    return backend, compiled
