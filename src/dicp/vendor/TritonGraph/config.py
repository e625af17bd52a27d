"""What dicp must know of the backend `tritongraph`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dicp.backend import Backend, Runner
from dicp.errors import CompileError, UnsupportedError
from dicp.loops.text import program_text
from dicp.loops.verify import verify_program
from dicp.passes.lowering import devices_of, loop_decompositions, lower, supports
from dicp.settings import VERIFY
from dicp.vendor.TritonGraph.installation import (
    MISSING,
    launch_device_types,
    triton_problem,
    triton_version,
)

__all__ = ["BACKEND"]


class TritonBackend(Backend):
    """Lowers a graph to loops, prints them as kernels of Triton and launches these from one function of Python."""

    name = "tritongraph"

    @property
    def version(self) -> str:
        return triton_version()

    def decompositions(self) -> Mapping[torch._ops.OperatorBase, Callable[..., Any]]:
        return loop_decompositions()

    def supports(self, node: Node) -> bool:
        return supports(node) and len(devices_of([node, *node.all_input_nodes])) <= 1

    def compile(self, graph: GraphModule) -> Runner:
        if find_spec("triton") is None:
            raise CompileError(MISSING)
        placeholders = graph.graph.find_nodes(op="placeholder")
        devices = devices_of(graph.graph.nodes)
        if len(devices) != 1 or next(iter(devices)).type not in launch_device_types():
            known = ", ".join(launch_device_types()) or f"no device: {triton_problem()}"
            raise UnsupportedError(
                f"tritongraph compiles for {known}; the graph is on {', '.join(map(str, devices)) or 'none'}"
            )
        program = lower(graph)
        if VERIFY.get() != "off":
            verify_program(program)
        artifacts = graph.meta["artifacts"] = {"loops.txt": program_text(program)}
        from dicp.vendor.TritonGraph.loading import load
        from dicp.vendor.TritonGraph.source import generated

        device = devices.pop()
        made = generated(program, len(placeholders), device, _multiprocessors(device))
        artifacts["graph.py"] = made.source
        return load(made, program, [node.meta.get("constant") for node in placeholders], device)

    def doctor(self) -> Mapping[str, str]:
        problem = triton_problem()
        return {"triton": f"problem: {problem}" if problem else triton_version()}


def _multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return 1
    properties = torch.get_device_module(device.type).get_device_properties(device)
    return int(getattr(properties, "multi_processor_count", 64))


BACKEND = TritonBackend()
