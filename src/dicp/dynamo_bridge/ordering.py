"""What must be done before what, besides arguments: memory is read before it is written to, random numbers keep their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

__all__ = ["orderings", "written_arguments"]

# They give a view, which their schemas do not say.
_SILENT_VIEWS = (torch.ops.aten._unsafe_view.default,)


def orderings(graph: Graph) -> dict[Node, list[Node]]:
    """For nodes that must wait for others which are not among their arguments: those others.

    Parts of a graph may be moved past each other only in this order. Takes time linear in the size of the graph.
    """
    memory = _memory(graph)
    written = {memory[target] for node in graph.nodes for target in written_arguments(node)}
    before: dict[Node, list[Node]] = {}
    readers: dict[Node, list[Node]] = {root: [] for root in written}
    writer: dict[Node, Node] = {}
    effect: Node | None = None
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        waits: list[Node] = []
        writes = {memory[target] for target in written_arguments(node)}
        for root in {memory[argument] for argument in node.all_input_nodes} & written:
            if root in writer:
                waits.append(writer[root])
            if root in writes:
                waits += readers[root]
                readers[root], writer[root] = [], node
            else:
                readers[root].append(node)
        if _has_effect(node):
            if effect is not None:
                waits.append(effect)
            effect = node
        if waits:
            before[node] = waits
    return before


def _memory(graph: Graph) -> dict[Node, Node]:
    """Of each value the node whose memory it lies in."""
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        base = _viewed(node)
        found[node] = node if base is None else found[base]
    return found


def _viewed(node: Node) -> Node | None:
    if node.op != "call_function" or not node.args:
        return None
    first = node.args[0]
    if getattr(node.target, "__name__", "") == "getitem" or node.target in _SILENT_VIEWS:
        return first if isinstance(first, Node) else None
    if isinstance(node.target, OpOverload):
        schema = node.target._schema
        if any(result.alias_info is not None for result in schema.returns):
            for index, argument in enumerate(schema.arguments):
                given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
                if argument.alias_info is not None and isinstance(given, Node):
                    return given
    return None


def written_arguments(node: Node) -> Iterator[Node]:
    """The arguments that a call writes to."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given: Any = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            for part in given if isinstance(given, list | tuple) else (given,):
                if isinstance(part, Node):
                    yield part


def _has_effect(node: Node) -> bool:
    """Random numbers, and what is called for more than its value."""
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    if isinstance(node.target, OpOverload):
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            return True
        return not node.users and not node.target._schema.is_mutable and bool(node.is_impure())
    return False
