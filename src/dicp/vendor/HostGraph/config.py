"""What dicp must know of the backend `hostgraph`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dicp.backend import Backend, Runner
from dicp.errors import UnsupportedError
from dicp.loops.text import program_text
from dicp.loops.verify import verify_program
from dicp.passes.channels_last import channels_last
from dicp.passes.lowering import devices_of, loop_decompositions, lower, supports
from dicp.settings import CXX, SANITIZE, VERIFY
from dicp.vendor.HostGraph.compiler import build
from dicp.vendor.HostGraph.source import generated

__all__ = ["BACKEND"]

DEVICES = ("cpu", "dipu")


class HostBackend(Backend):
    """Lowers a graph to loops, prints them as one file of C++, has it compiled and runs it by one call."""

    name = "hostgraph"
    settings = (CXX, SANITIZE)

    def decompositions(self) -> Mapping[torch._ops.OperatorBase, Callable[..., Any]]:
        return loop_decompositions()

    def supports(self, node: Node) -> bool:
        return supports(node) and len(devices_of([node, *node.all_input_nodes])) <= 1

    def passes(self) -> Sequence[Callable[[GraphModule], GraphModule]]:
        return (channels_last,)

    def compile(self, graph: GraphModule) -> Runner:
        placeholders = graph.graph.find_nodes(op="placeholder")
        devices = devices_of(graph.graph.nodes)
        if len(devices) != 1 or next(iter(devices)).type not in DEVICES:
            raise UnsupportedError(
                f"hostgraph compiles for {' and '.join(DEVICES)}; the graph is on {', '.join(map(str, devices))}"
            )
        program = lower(graph)
        if VERIFY.get() != "off":
            verify_program(program)
        constants = [node.meta.get("constant") for node in placeholders]
        made = generated(program, len(placeholders), constants, devices.pop())
        artifacts = graph.meta["artifacts"] = {"loops.txt": program_text(program), "graph.cpp": made.source}
        result = build(made.source)
        artifacts["compiler.txt"] = f"{result.command}\n{result.log}"
        runner: Runner = made.host.load(result.path)
        return runner

    def doctor(self) -> Mapping[str, str]:
        command = CXX.get().split()
        found = shutil.which(command[0]) if command else None
        return {"compiler": found or f"problem: {CXX.get()!r} is not found; install g++ or set DICP_CXX"}


BACKEND = HostBackend()
