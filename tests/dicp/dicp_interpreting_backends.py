"""Backends that interpret their graphs by eager operators: one that is right, and others that each make one mistake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from dicp.backend import Backend, Runner

Change = Callable[[GraphModule, Sequence[Any]], Sequence[Any]]


class InterpretingBackend(Backend):
    """Takes every operator; `change` may do to the results what a defect would do."""

    name = "interpretinggraph"

    def __init__(self, change: Change | None = None) -> None:
        self.change = change

    def supports(self, node: Node) -> bool:
        return True

    def compile(self, graph: GraphModule) -> Runner:
        def run(*inputs: Any) -> Sequence[Any]:
            results = Interpreter(graph).run(*inputs)
            return results if self.change is None else self.change(graph, results)

        return run


class RefusingBackend(InterpretingBackend):
    """Leaves every operator to eager."""

    def supports(self, node: Node) -> bool:
        return False


class FailingBackend(InterpretingBackend):
    """Takes every operator and then cannot compile."""

    def compile(self, graph: GraphModule) -> Runner:
        raise RuntimeError("the compiler is broken")


class IdleBackend(InterpretingBackend):
    """Computes nothing: its results are memory that nobody wrote to since it was zero."""

    def compile(self, graph: GraphModule) -> Runner:
        def run(*inputs: Any) -> Sequence[Any]:
            return [torch.zeros_like(value) for value in Interpreter(graph).run(*inputs)]

        return run


class DroppingBackend(InterpretingBackend):
    """Loses an operator of a graph: its first argument takes its place."""

    def __init__(self, dropped: object) -> None:
        super().__init__()
        self.dropped = dropped

    def compile(self, graph: GraphModule) -> Runner:
        for node in graph.graph.find_nodes(op="call_function", target=self.dropped):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
        graph.recompile()
        return super().compile(graph)


class StaleBackend(InterpretingBackend):
    """Gives the results of the first call again."""

    def compile(self, graph: GraphModule) -> Runner:
        first: list[Sequence[Any]] = []

        def run(*inputs: Any) -> Sequence[Any]:
            if not first:
                first.append(Interpreter(graph).run(*inputs))
            return first[0]

        return run


class ReusingBackend(InterpretingBackend):
    """Writes the results of every call to the memory of the first."""

    def compile(self, graph: GraphModule) -> Runner:
        first: list[Sequence[Any]] = []

        def run(*inputs: Any) -> Sequence[Any]:
            results = Interpreter(graph).run(*inputs)
            if not first:
                first.append([value.clone() for value in results])
            for kept, value in zip(first[0], results, strict=True):
                if kept.shape == value.shape:
                    kept.copy_(value)
            return first[0]

        return run


def of_another_dtype(graph: GraphModule, results: Sequence[Any]) -> Sequence[Any]:
    return [value.double() if value.is_floating_point() else value.int() for value in results]


def of_other_strides(graph: GraphModule, results: Sequence[Any]) -> Sequence[Any]:
    return [
        value.transpose(0, -1).contiguous().transpose(0, -1) if value.dim() > 1 else value
        for value in results
    ]


def of_one_wrong_element(graph: GraphModule, results: Sequence[Any]) -> Sequence[Any]:
    found = [value.clone() for value in results]
    for value in found:
        value.view(-1)[-1] += 1
    return found
