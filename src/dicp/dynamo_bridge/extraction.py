"""A compiled step as a graph of its own, in the simple form that backends are promised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule, Node

from dicp.dynamo_bridge.symbols import arithmetic, expression_of, free_symbols_of, is_number

__all__ = ["ExtractedStep", "extracted"]


@dataclass(frozen=True)
class ExtractedStep:
    """The graph of a step, and where its inputs come from and its outputs go to in the graph that it was part of."""

    graph: GraphModule
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


def extracted(
    nodes: Sequence[Node], sources: Mapping[sympy.Symbol, Node], meta: Mapping[str, Any]
) -> ExtractedStep:
    """Copies nodes into a graph of their own; `sources` are the nodes that give the symbols their values."""
    inside = set(nodes)
    tensors = _tensors_from_outside(nodes, inside)
    symbols = _symbols_of([*tensors, *nodes])
    graph = Graph()
    gm = GraphModule(torch.nn.Module(), graph)
    copied: dict[Node, Any] = {}
    inputs: list[Node] = []
    for node in tensors:
        copied[node] = _placeholder(graph, node)
        inputs.append(node)
    values: dict[sympy.Symbol, Node] = {}
    for symbol in symbols:
        source = sources[symbol]
        values[symbol] = _placeholder(graph, source)
        inputs.append(source)
    numbers: dict[sympy.Expr, Any] = {}

    def copy_of(argument: Node) -> Any:
        if argument in copied:
            return copied[argument]
        expression = expression_of(argument.meta["val"])
        if expression is None:
            return argument.meta["val"]
        if expression not in numbers:
            numbers[expression] = arithmetic(gm, expression, values)
        return numbers[expression]

    for node in nodes:
        copied[node] = graph.node_copy(node, copy_of)
    outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
    graph.output([copied[node] for node in outputs])
    gm = GraphModule(torch.nn.Module(), graph)
    gm.meta.update(meta)
    return ExtractedStep(gm, tuple(inputs), outputs)


def _tensors_from_outside(nodes: Iterable[Node], inside: set[Node]) -> list[Node]:
    found: dict[Node, None] = {}
    for node in nodes:
        for argument in node.all_input_nodes:
            if argument not in inside and not is_number(argument):
                found[argument] = None
    return list(found)


def _symbols_of(nodes: Iterable[Node]) -> list[sympy.Symbol]:
    values = []
    for node in nodes:
        values.append(node.meta["val"])
        values += [argument.meta["val"] for argument in node.all_input_nodes if is_number(argument)]
    return list(free_symbols_of(values))


def _placeholder(graph: Graph, node: Node) -> Node:
    placeholder = graph.placeholder(node.name)
    placeholder.meta["val"] = node.meta["val"]
    if "constant" in node.meta:
        placeholder.meta["constant"] = node.meta["constant"]
    return placeholder
