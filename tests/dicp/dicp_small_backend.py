"""A backend of three operators that interprets its graphs: what the bridge is tested with."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Interpreter, Node

from dicp.backend import Backend, Runner

aten = torch.ops.aten
OPERATORS = (aten.add.Tensor, aten.mul.Tensor, aten.relu.default)


class SmallBackend(Backend):
    """Keeps the graphs that it got, to be looked at, and counts the calls of its runners."""

    name = "smallgraph"

    def __init__(self, operators: tuple[object, ...] = OPERATORS) -> None:
        self.operators = operators
        self.graphs: list[GraphModule] = []
        self.calls = 0

    def decompositions(self):
        return {}

    def supports(self, node: Node) -> bool:
        return node.target in self.operators

    def compile(self, graph: GraphModule) -> Runner:
        for node in graph.graph.nodes:
            assert node.op != "call_function" or "val" in node.meta
        self.graphs.append(graph)
        graph.meta["artifacts"] = {"small.txt": f"{len(graph.graph.nodes)} nodes"}

        def run(*inputs):
            self.calls += 1
            for node, value in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
                expected = node.meta["val"]
                if isinstance(expected, torch.Tensor):
                    assert value.dtype == expected.dtype and value.dim() == expected.dim()
                    if "constant" in node.meta:
                        assert value is node.meta["constant"]
                    if not any(isinstance(n, torch.SymInt) for n in (*expected.shape, *expected.stride())):
                        assert value.shape == expected.shape and value.stride() == expected.stride()
                else:
                    assert type(value) is int
            return Interpreter(graph).run(*inputs)

        return run
