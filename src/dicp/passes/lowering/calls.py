"""Steps that are no kernels: products of matrices, and operators of ATen as they are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from dicp.errors import UnsupportedError
from dicp.loops.index import Size, added, product, size_of
from dicp.loops.ir import BufferView, CallArgument, MatrixProduct, OperatorCall
from dicp.passes.lowering.values import dtype_of, is_tensor, name_of, offset_of, shape_of, strides_of

__all__ = ["CallWriter", "is_product", "is_supported_call"]

_OTHER_RESULTS = "_embedding_bag"
"""Operators that give and take results of other sizes than fake tensors say."""
PRODUCT_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def is_supported_call(node: Node) -> bool:
    """Whether an operator can be called as it is: it gives new tensors, and sizes are all that is symbolic in its arguments."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    if any(result.alias_info is not None for result in target._schema.returns):
        return False
    if target._opname.startswith(_OTHER_RESULTS):
        return False
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return not any(isinstance(v, torch.SymFloat | torch.SymBool) for v in values)


def is_product(node: Node) -> bool:
    """Whether a call is a MatrixProduct: of floats, with rows that are dense, and a bias for each column at most."""
    name = name_of(node)
    if (
        name not in ("mm", "bmm", "addmm", "baddbmm")
        or getattr(node.target, "_overloadname", "") != "default"
    ):
        return False
    biased = name in ("addmm", "baddbmm")
    if len(node.args) != 2 + biased or node.kwargs.get("beta", 1) != 1 or node.kwargs.get("alpha", 1) != 1:
        return False
    dtype, size = dtype_of(node), shape_of(node)[-1]
    if dtype not in PRODUCT_DTYPES or any(dtype_of(n) is not dtype for n in node.all_input_nodes):
        return False
    if biased and shape_of(node.args[0]) != (size,):  # type: ignore[arg-type]
        return False
    return size == 1 or strides_of(node)[-1] == 1


class CallWriter:
    """`root`: whose memory a value lies in; `buffer`: the name of a root's buffer, which it may make."""

    def __init__(self, root: Callable[[Node], Node], buffer: Callable[[Node], str]) -> None:
        self.root, self.buffer = root, buffer

    def view(self, node: Node) -> BufferView:
        root = self.root(node)
        offset = added(offset_of(node), product((-1, offset_of(root))))
        return BufferView(self.buffer(root), dtype_of(node), shape_of(node), strides_of(node), offset)

    def step(self, node: Node) -> MatrixProduct | OperatorCall:
        return self._product(node) or self._call(node)

    # products

    def _product(self, node: Node) -> MatrixProduct | None:
        if not is_product(node):
            return None
        *bias, a, b = node.args
        assert isinstance(a, Node) and isinstance(b, Node)
        added_bias = self.view(bias[0]) if bias else None  # type: ignore[arg-type]
        return MatrixProduct(_three(self.view(a)), _three(self.view(b)), _three(self.view(node)), added_bias)

    # operators

    def _call(self, node: Node) -> OperatorCall:
        target = node.target
        assert isinstance(target, torch._ops.OpOverload)
        arguments = []
        for number, described in enumerate(target._schema.arguments):
            if number < len(node.args):
                given = node.args[number]
            elif described.name in node.kwargs:
                given = node.kwargs[described.name]
            else:
                given = described.default_value
            arguments.append(self._argument(given))
        return OperatorCall(target, tuple(arguments), tuple(self._results(node)))

    def _argument(self, given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return [self._argument(item) for item in given]
        if not isinstance(given, Node):
            return given
        if is_tensor(given):
            return self.view(given)
        value = given.meta["val"]
        if not isinstance(value, int | torch.SymInt):
            raise UnsupportedError(f"{given} is {value}: operators take tensors and sizes only")
        number: Size = size_of(value)
        return number if isinstance(number, int) else CallArgument(number)

    def _results(self, node: Node) -> list[tuple[int, int, str]]:
        if is_tensor(node):
            return [(0, -1, self.buffer(node))]
        assert isinstance(node.target, torch._ops.OpOverload)
        listed = len(node.target._schema.returns) == 1
        results = []
        for user in node.users:
            if user.target is operator.getitem and is_tensor(user):
                position = user.args[1]
                assert isinstance(position, int)
                place = (0, position) if listed else (position, -1)
                results.append((*place, self.buffer(user)))
        return sorted(results)


def _three(view: BufferView) -> BufferView:
    """With a batch of one where there is none."""
    if len(view.sizes) == 3:
        return view
    extent = product((view.sizes[0], view.strides[0]))
    return BufferView(view.buffer, view.dtype, (1, *view.sizes), (extent, *view.strides), view.offset)
