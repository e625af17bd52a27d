"""A backend that lowers its graphs to the loop IR and interprets them: what the lowering is tested with."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._ops import OpOverload
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from dicp import registry
from dicp.dynamo_bridge.compile_fx import compile_fx
from dicp.loops.evaluate_program import evaluate_program
from dicp.loops.ir import KernelLaunch, LoopProgram, MatrixProduct, OperatorCall
from dicp.loops.memory import plan_memory, verify_memory
from dicp.loops.verify import verify_program
from dicp.passes.lowering import loop_decompositions, lower, supports
from dicp.passes.reference_backend import ReferenceBackend


class LoopBackend(ReferenceBackend):
    """Keeps the programs that it made."""

    name = "loopgraph"

    def __init__(self) -> None:
        self.programs: list[LoopProgram] = []

    def program_of(self, graph: GraphModule) -> LoopProgram:
        program = super().program_of(graph)
        self.programs.append(program)
        return program

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


def evaluated(function: Callable[..., Any], leaves: list[Any]) -> list[Any]:
    """A function's results by way of a program of loops, without TorchDynamo; sizes are written into the graph."""
    places = [number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[number] for number in places]

    def flat(*given: torch.Tensor) -> list[Any]:
        arguments = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            arguments[place] = tensor
        return [leaf for leaf in tree_leaves(function(*arguments)) if isinstance(leaf, torch.Tensor)]

    with torch.no_grad():
        gm = _traced(flat, tensors)
        if any(isinstance(n.target, OpOverload) and n.target._schema.is_mutable for n in gm.graph.nodes):
            gm = _traced(functionalize(gm, remove="mutations"), tensors)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    _returns_computed(gm)
    for node in gm.graph.nodes:
        if node.op == "call_function":
            assert node.target is operator.getitem or supports(node), node.format_node()
    program = lower(gm)
    verify_program(program)
    plan = plan_memory(program)
    verify_memory(program, plan)
    return evaluate_program(program, tensors, plan)


def _traced(function: Callable[..., Any], tensors: list[torch.Tensor]) -> GraphModule:
    table = dict(loop_decompositions())
    return make_fx(function, decomposition_table=table, tracing_mode="fake")(*tensors)


def _returns_computed(gm: GraphModule) -> None:
    """Inputs that are returned become copies: a backend's graph returns what it computes."""
    output = gm.graph.output_node()
    with gm.graph.inserting_before(output):
        for node in {n for n in output.all_input_nodes if n.op == "placeholder"}:
            copy = gm.graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta["val"] = node.meta["val"]
            output.replace_input_with(node, copy)
