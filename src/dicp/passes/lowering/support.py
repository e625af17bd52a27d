"""What can be lowered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from dicp.passes.lowering.calls import is_supported_call
from dicp.passes.lowering.operators import is_defined
from dicp.passes.lowering.reductions import reduction_of
from dicp.passes.lowering.views import is_view, is_view_list

__all__ = ["devices_of", "supports"]


def supports(node: Node) -> bool:
    """Whether `lower` takes a call: operators that loops do not have are called as they are, but for those that mutate."""
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    if not all(_is_known(value) for value in values):
        return False
    if node.target is torch.ops.aten.copy_.default:
        target = node.args[0]
        while isinstance(target, Node) and is_view(target):
            target = target.args[0]
        return isinstance(target, Node) and target.op == "placeholder" and _only_returned(node)
    if is_view(node) or is_view_list(node) or is_defined(node) or reduction_of(node) is not None:
        return True
    return is_supported_call(node)


def _only_returned(node: Node) -> bool:
    return all(user.op == "output" for user in node.users)


def _is_known(value: Any) -> bool:
    """Strided tensors on one kind of memory, whose sizes are known before the graph runs."""
    if isinstance(value, (list, tuple)):
        return all(_is_known(item) for item in value)
    if isinstance(value, torch.Tensor):
        return (
            value.layout is torch.strided
            and value.device.type != "meta"
            and not value.is_quantized
            and not value.is_neg()
            and not value.is_conj()
            and not (value._has_symbolic_sizes_strides and free_unbacked_symbols(value))
        )
    return not (isinstance(value, torch.SymInt) and free_unbacked_symbols(value))


def devices_of(nodes: Iterable[Node]) -> set[torch.device]:
    """Where the tensors of nodes are."""
    found: set[torch.device] = set()
    for node in nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor):
                found.add(item.device)
    return found
