"""Which inputs of a graph it writes to: caches, and whatever else a call changes in place."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_IN_PLACE = frozenset(
    getattr(operator, name)
    for name in (
        "setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
        "imatmul",
    )
)  # fmt: skip


def written_inputs(graph: GraphModule) -> set[int]:
    """The indices of inputs whose memory the graph writes to, directly or through a view."""
    holders: dict[int, list[int]] = {}
    for index, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        memory = _memory(node)
        if memory is not None:
            holders.setdefault(memory, []).append(index)
    found: set[int] = set()
    for node in graph.graph.nodes:
        for target in _targets(node):
            memory = _memory(target)
            if memory is not None:
                found.update(holders.get(memory, ()))
    return found


def _memory(node: Node) -> int | None:
    """A number for the memory behind a node's value, equal for a tensor and its views."""
    # Dynamo's graphs have example_value, those of ATen val.
    value = node.meta.get("example_value", node.meta.get("val"))
    if not isinstance(value, Tensor):
        return None
    # Private: the only identity that storages of fake tensors have.
    return value.untyped_storage()._cdata


def _targets(node: Node) -> Iterator[Node]:
    """The nodes whose values a call writes to."""
    if node.op == "call_method":
        name = str(node.target)
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            yield from _nodes(node.args[:1])
    elif node.op == "call_function":
        if isinstance(node.target, torch._ops.OpOverload):
            for index, argument in enumerate(node.target._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
                    yield from _nodes(given)
        elif node.target in _IN_PLACE or _ends_like_in_place(node.target):
            yield from _nodes(node.args[:1])
    yield from _nodes(node.kwargs.get("out"))


def _ends_like_in_place(function: Any) -> bool:
    """torch's own functions say it by their name: `torch.relu_`."""
    name = getattr(function, "__name__", "")
    return name.endswith("_") and not name.endswith("__")


def _nodes(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _nodes(part)
