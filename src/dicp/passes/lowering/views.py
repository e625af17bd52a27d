"""Views: which nodes show the memory of another, and where an element of a view lies in what it shows.

Where the memory exists, the strides of the fake tensors say all. The functions here serve views of values that are never stored.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from torch.fx import Node

from dicp.loops.index import Affine, IndexRanges, Size, added, is_nonnegative, product
from dicp.passes.lowering.values import (
    Index,
    argument,
    dtype_of,
    elements_of,
    is_tensor,
    memory_extent,
    name_of,
    number_of,
    offset_of,
    shape_of,
)

__all__ = ["has_index", "is_view", "is_view_list", "source_index", "viewed"]

ZERO = Affine()
_LISTS = ("split", "split_with_sizes", "unbind")
_MEMORY_ONLY = ("as_strided", "diagonal", "unfold")
"""Views that strides describe and index functions do not."""


def is_view_list(node: Node) -> bool:
    """A list of views."""
    return name_of(node) in _LISTS and is_tensor(node.args[0])


def is_view(node: Node) -> bool:
    if node.op != "call_function" or not is_tensor(node):
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, Node) and is_view_list(source)
    name = name_of(node)
    if name == "slice" and node.args[0] is not None and _step(node) < 1:
        return False
    known = name in _INDEX or name in _MEMORY_ONLY
    if not known or not is_tensor(node.args[0]) or dtype_of(node.args[0]) is not dtype_of(node):  # type: ignore[arg-type]
        return False
    return name != "as_strided" or _stays_inside(node)


def _stays_inside(node: Node) -> bool:
    """Whether memory that strides describe is surely that of the value it is made of: `as_strided` may leave it."""
    source = viewed(node)
    while is_view(source):
        source = viewed(source)
    before = added(offset_of(node), product((-1, offset_of(source))))
    behind = added(memory_extent(source), product((-1, added(before, memory_extent(node)))))
    return elements_of(node) == 0 or (is_nonnegative(before) and is_nonnegative(behind))


def viewed(node: Node) -> Node:
    """What a view shows a part of; not yet its root."""
    source = node.args[0]
    assert isinstance(source, Node)
    if node.target is operator.getitem:
        source = source.args[0]
        assert isinstance(source, Node)
    return source


def has_index(node: Node) -> bool:
    """Whether the elements of a view can be found without memory."""
    return node.target is operator.getitem or name_of(node) in _INDEX


def source_index(node: Node, index: Index, ranges: IndexRanges) -> Index:
    """The index in `viewed(node)` of an element of the view."""
    if node.target is operator.getitem:
        return _part(node, index)
    return _INDEX[name_of(node)](node, index, ranges)


def _reshaped(node: Node, index: Index, ranges: IndexRanges) -> Index:
    return ranges.split(ranges.linear(index, shape_of(node)), shape_of(viewed(node)))


def _permuted(node: Node, index: Index, ranges: IndexRanges) -> Index:
    dims = argument(node, "dims")
    result = [ZERO] * len(dims)
    for part, dim in zip(index, dims, strict=True):
        result[dim % len(dims)] = part
    return tuple(result)


def _transposed(node: Node, index: Index, ranges: IndexRanges) -> Index:
    if len(index) < 2:
        return index
    a, b = argument(node, "dim0", 0) % len(index), argument(node, "dim1", 1) % len(index)
    result = list(index)
    result[a], result[b] = result[b], result[a]
    return tuple(result)


def _expanded(node: Node, index: Index, ranges: IndexRanges) -> Index:
    shape = shape_of(viewed(node))
    own = index[len(index) - len(shape) :]
    return tuple(ZERO if size == 1 else part for part, size in zip(own, shape, strict=True))


def _unsqueezed(node: Node, index: Index, ranges: IndexRanges) -> Index:
    dim = argument(node, "dim") % len(index)
    return index[:dim] + index[dim + 1 :]


def _squeezed(node: Node, index: Index, ranges: IndexRanges) -> Index:
    shape = shape_of(viewed(node))
    dims = argument(node, "dim", range(len(shape)))
    asked = {d % max(len(shape), 1) for d in ((dims,) if isinstance(dims, int) else dims)}
    left = iter(index)
    return tuple(ZERO if d in asked and shape[d] == 1 else next(left) for d in range(len(shape)))


def _step(node: Node) -> int:
    step = argument(node, "step", 1)
    return step if isinstance(step, int) else 0


def _sliced(node: Node, index: Index, ranges: IndexRanges) -> Index:
    dim = argument(node, "dim", 0) % len(index)
    size = shape_of(viewed(node))[dim]
    start = _from_start(number_of(argument(node, "start") or 0), size)
    if isinstance(start, int) and isinstance(size, int):
        start = min(max(start, 0), size)
    return (*index[:dim], index[dim] * _step(node) + start, *index[dim + 1 :])


def _from_start(position: Size, size: Size) -> Size:
    """A position that may count from the end."""
    return position if is_nonnegative(position) else added(position, size)


def _selected(node: Node, index: Index, ranges: IndexRanges) -> Index:
    shape = shape_of(viewed(node))
    dim = argument(node, "dim") % len(shape)
    at = _from_start(number_of(argument(node, "index")), shape[dim])
    return (*index[:dim], Affine(at), *index[dim:])


def _same(node: Node, index: Index, ranges: IndexRanges) -> Index:
    return index


def _part(node: Node, index: Index) -> Index:
    """Of a list of views."""
    split, which = node.args
    assert isinstance(split, Node) and isinstance(which, int)
    shape = shape_of(viewed(node))
    dim = argument(split, "dim", 0) % len(shape)
    if name_of(split) == "unbind":
        return (*index[:dim], Affine(which), *index[dim:])
    if "with_sizes" in name_of(split):
        before: Size = 0
        for size in argument(split, "split_sizes")[:which]:
            before = added(before, number_of(size))
    else:
        before = product((which, number_of(argument(split, "split_size"))))
    return (*index[:dim], index[dim] + before, *index[dim + 1 :])


_INDEX: Mapping[str, Callable[[Node, Index, IndexRanges], Index]] = {
    "view": _reshaped,
    "_unsafe_view": _reshaped,
    "permute": _permuted,
    "transpose": _transposed,
    "t": _transposed,
    "expand": _expanded,
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "slice": _sliced,
    "select": _selected,
    "alias": _same,
    "detach": _same,
    "lift_fresh": _same,
}
