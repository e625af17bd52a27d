"""Facts about the values of a graph: shapes, strides and places in memory, as the fake tensors say."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.fx import Node

from dicp.loops.index import Affine, Size, added, product, size_of

__all__ = [
    "Index",
    "address_of",
    "argument",
    "dtype_of",
    "elements_of",
    "hint_of",
    "is_tensor",
    "memory_extent",
    "name_of",
    "number_of",
    "offset_of",
    "shape_of",
    "strides_of",
    "tensor_inputs",
]

Index: TypeAlias = tuple[Affine, ...]
"""Of an element: a part for each dimension."""


def is_tensor(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def tensor_inputs(node: Node) -> list[Node]:
    """The tensors, and the lists of tensors, among the arguments."""
    return [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), (torch.Tensor, tuple, list))]


def dtype_of(node: Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def shape_of(node: Node) -> tuple[Size, ...]:
    return tuple(map(size_of, node.meta["val"].shape))


def strides_of(node: Node) -> tuple[Size, ...]:
    return tuple(map(size_of, node.meta["val"].stride()))


def offset_of(node: Node) -> Size:
    return size_of(node.meta["val"].storage_offset())


def elements_of(node: Node) -> Size:
    """How many."""
    return product(shape_of(node))


def memory_extent(node: Node) -> Size:
    """How many elements lie between the first and the last, both included."""
    sizes = shape_of(node)
    if any(size == 0 for size in sizes):
        return 0
    result: Size = 1
    for size, stride in zip(sizes, strides_of(node), strict=True):
        result = added(result, product((added(size, -1), stride)))
    return result


def address_of(node: Node, root: Node, index: Index) -> Affine:
    """Where an element of a view lies in the memory of its root."""
    result = Affine(offset_of(node)) + product((-1, offset_of(root)))
    for part, stride in zip(index, strides_of(node), strict=True):
        result = result + part * stride
    return result


def name_of(node: Node) -> str:
    """`add`, of `aten.add.Tensor`; empty for what is no operator of aten or prims."""
    target = node.target
    known = node.op == "call_function" and isinstance(target, torch._ops.OpOverload)
    return target._opname if known and target.namespace in ("aten", "prims") else ""  # type: ignore[union-attr]


def argument(node: Node, name: str, otherwise: Any = None) -> Any:
    """An argument by its name in the schema, with the schema's default."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    for number, described in enumerate(target._schema.arguments):
        if described.name == name:
            if number < len(node.args):
                return node.args[number]
            if name in node.kwargs:
                return node.kwargs[name]
            return described.default_value if described.has_default_value() else otherwise
    return otherwise


def number_of(value: Any) -> Size:
    """A size or position among the arguments: an int, or a node that computes one."""
    return size_of(value.meta["val"] if isinstance(value, Node) else value)


def hint_of(value: Any) -> int:
    """The number itself, or what it was for the example that the graph was traced with."""
    if isinstance(value, torch.SymInt):
        hint = value.node.hint
        return 1 << 30 if hint is None else int(hint)
    return int(value)
