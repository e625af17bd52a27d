"""A backend that compiles nothing: graphs are lowered to the loop IR, which the reference interpreter runs on the CPU.

Slow, and right where the lowering is: what vendors that print loop programs are compared with. `register(ReferenceBackend())`
makes it `torch.compile(..., backend=...)` for `compile_fx(gm, inputs, "reference")`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dicp.backend import Backend, Runner
from dicp.loops.evaluate_program import evaluate_program
from dicp.loops.ir import LoopProgram
from dicp.loops.memory import plan_memory, verify_memory
from dicp.loops.verify import verify_program
from dicp.passes.lowering import loop_decompositions, lower, supports

__all__ = ["ReferenceBackend"]


class ReferenceBackend(Backend):
    name = "reference"

    def decompositions(self) -> Mapping[torch._ops.OperatorBase, Callable[..., Any]]:
        return loop_decompositions()

    def supports(self, node: Node) -> bool:
        return supports(node)

    def program_of(self, graph: GraphModule) -> LoopProgram:
        """The graph lowered, and checked."""
        program = lower(graph)
        verify_program(program)
        return program

    def compile(self, graph: GraphModule) -> Runner:
        program = self.program_of(graph)
        plan = plan_memory(program)
        verify_memory(program, plan)
        return lambda *inputs: evaluate_program(program, inputs, plan)
