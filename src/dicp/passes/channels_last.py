"""The data format of convolutions: channels last, as their kernels read it, and so all that lies between them."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dicp.graph.inference import difference, inferred, inferring, infers

__all__ = ["channels_last"]

aten = torch.ops.aten
LAST = torch.channels_last
_OF_STRIDES = ("as_strided", "as_strided_scatter", "set_", "view_as_real", "resize_")
"""Operators whose results depend on how their arguments lie in memory."""


def channels_last(gm: GraphModule) -> GraphModule:
    """An inference graph whose convolutions read channels last; its outputs lie in memory as before."""
    nodes = list(gm.graph.nodes)
    convolutions = [node for node in nodes if _is_convolution(node)]
    if (
        not convolutions
        or gm.meta.get("kind", "inference") != "inference"
        or not all(map(_may_change, nodes))
    ):
        return gm
    returned = [
        n for n in gm.graph.output_node().all_input_nodes if _is_tensor(n) and n.op == "call_function"
    ]
    promised = {n: n.meta["val"] for n in returned}
    if not all(_is_dense(value) for value in promised.values()):
        return gm
    wanted = set(convolutions)
    copies: dict[Node, Node] = {}
    with inferring(gm.graph):
        for node in nodes:
            if node in wanted:
                _read_channels_last(node, copies)
            if node.op == "call_function":
                _infer(node)
        _restore(gm, promised)
    gm.recompile()
    return gm


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_convolution(node: Node) -> bool:
    if node.target is not aten.convolution.default or node.args[6] or node.meta["val"].dim() != 4:
        return False
    value = node.meta["val"]
    return value.device.type == "cpu" and all(isinstance(size, int) for size in value.shape)


def _may_change(node: Node) -> bool:
    """Whether a node's type can be inferred again, and its result does not depend on strides."""
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    name = getattr(node.target, "_schema", None)
    if name is not None and name.name.partition("::")[2] in _OF_STRIDES:
        return False
    return node.target is operator.getitem or (
        isinstance(node.target, torch._ops.OpOverload) and infers(node)
    )


def _read_channels_last(node: Node, copies: dict[Node, Node]) -> None:
    source: Any = node.args[0]
    if source.meta["val"].is_contiguous(memory_format=LAST):
        return
    copy = copies.get(source)
    if copy is None:
        with node.graph.inserting_before(node):
            copy = copies[source] = _new(node.graph, aten.clone.default, source, memory_format=LAST)
    node.update_arg(0, copy)


def _new(graph: Graph, target: Any, *arguments: Any, **options: Any) -> Node:
    node = graph.call_function(target, arguments, options)
    node.meta["val"] = inferred(node)
    return node


def _infer(node: Node) -> None:
    if node.target in (aten.view.default, aten._unsafe_view.default):
        node.target = aten.reshape.default
    node.meta["val"] = inferred(node)


def _order(value: torch.Tensor) -> list[int]:
    """The dimensions from the outermost in memory to the innermost."""
    strides = value.stride()
    return sorted(range(value.dim()), key=lambda dim: (-strides[dim], dim))


def _is_dense(value: torch.Tensor) -> bool:
    known = all(isinstance(size, int) for size in (*value.shape, *value.stride()))
    return known and value.permute(_order(value)).is_contiguous()


def _restore(gm: GraphModule, promised: dict[Node, torch.Tensor]) -> None:
    output = gm.graph.output_node()
    for node, before in promised.items():
        if not difference(before, node.meta["val"]):
            continue
        order = _order(before)
        back = [order.index(dim) for dim in range(len(order))]
        with gm.graph.inserting_before(output):
            turned = _new(gm.graph, aten.permute.default, node, order)
            copy = _new(gm.graph, aten.clone.default, turned, memory_format=torch.contiguous_format)
            output.replace_input_with(node, _new(gm.graph, aten.permute.default, copy, back))
