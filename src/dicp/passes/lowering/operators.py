"""Which operator is which definition: a table by the operator's name.

`definition_of(node)` knows operators that compute each element by itself: formulas, copies in another order, tensors out of
nothing. Reductions are in `reductions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.fx import Node

from dicp.loops.formulas import formula_of
from dicp.loops.index import Affine, IndexRanges, Size, added, is_nonnegative
from dicp.loops.primitives import DTYPES, Number
from dicp.passes.lowering.definitions import (
    Counted,
    Definition,
    Filled,
    Gathered,
    Joined,
    Looked,
    Moved,
    Padded,
    Pointwise,
    minus,
)
from dicp.passes.lowering.values import Index, argument, dtype_of, is_tensor, name_of, number_of, shape_of

__all__ = ["definition_of", "is_defined"]

ZERO = Affine()
MOST_PIECES = 32
"""More are copied one by one by ATen: each is a loop of its own in the code."""


def definition_of(node: Node) -> Definition | None:
    """None: not each element can be computed by itself, or it has a dtype that loops do not hold."""
    if not _is_plain(node) or not all(map(_is_plain, filter(is_tensor, node.all_input_nodes))):
        return None
    formula = formula_of(node)
    if formula is not None:
        return Pointwise(node, formula)
    make = _MAKERS.get(name_of(node))
    return None if make is None else make(node)


def is_defined(node: Node) -> bool:
    return definition_of(node) is not None


def _is_plain(node: Node) -> bool:
    value = node.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in DTYPES
        and value.layout is torch.strided
        and value.device.type != "meta"
        and not value.is_neg()
    )


def _full(node: Node) -> Definition | None:
    number = argument(node, "fill_value", argument(node, "value", argument(node, "s")))
    return (
        Filled(node, number)
        if isinstance(number, (bool, int, float, Node)) and not is_tensor(number)
        else None
    )


def _filled_with(number: Number) -> Callable[[Node], Definition | None]:
    return lambda node: Filled(node, number)


def _arange(node: Node) -> Definition | None:
    return Counted(node, argument(node, "start", 0), argument(node, "step", 1))


def _cat(node: Node) -> Definition | None:
    tensors, dim = node.args[0], argument(node, "dim", 0)
    assert isinstance(tensors, (list, tuple))
    rank = node.meta["val"].dim()
    given = [t for t in tensors if isinstance(t, Node) and t.meta["val"].dim() == rank]
    if len(given) > MOST_PIECES:
        return None
    dim, begin, pieces = dim % rank, 0, []
    for piece in given:
        end = added(begin, shape_of(piece)[dim])
        if end != begin:
            pieces.append((begin, end, piece, minus(begin)))
        begin = end
    return Joined(node, dim, tuple(pieces)) if pieces else None


def _put(node: Node) -> Definition | None:
    """`slice_scatter` without steps, `select_scatter`."""
    into, source = node.args[0], node.args[1]
    assert isinstance(into, Node) and isinstance(source, Node)
    dim = argument(node, "dim", 0) % node.meta["val"].dim()
    size = shape_of(node)[dim]
    if dtype_of(source) is not dtype_of(node) or argument(node, "step", 1) != 1:
        return None
    single = name_of(node) == "select_scatter"
    position = argument(node, "index") if single else argument(node, "start") or 0
    begin = number_of(position)
    begin = begin if is_nonnegative(begin) else added(begin, size)
    if isinstance(begin, int) and isinstance(size, int):
        begin = min(max(begin, 0), size)
    end = added(begin, 1 if single else shape_of(source)[dim])
    pieces = ((0, begin, into, 0), (begin, end, source, minus(begin)), (end, size, into, 0))
    return Joined(node, dim, tuple(p for p in pieces if p[0] != p[1]))


def _pad(node: Node) -> Definition | None:
    source, widths = node.args[0], argument(node, "pad")
    assert isinstance(source, Node)
    rank = node.meta["val"].dim()
    before: list[Size] = [0] * rank
    for k in range(len(widths) // 2):
        before[rank - 1 - k] = number_of(widths[2 * k])
    number = argument(node, "value", 0)
    return Padded(node, source, tuple(before), 0 if number is None else number)


def _flip(node: Node) -> Definition | None:
    source, dims = node.args[0], argument(node, "dims")
    assert isinstance(source, Node)
    shape = shape_of(source)
    flipped = {d % len(shape) for d in dims} if shape else set()

    def place(index: Index, ranges: IndexRanges) -> Index:
        return tuple(
            i * -1 + added(size, -1) if d in flipped and size != 1 else i
            for d, (i, size) in enumerate(zip(index, shape, strict=True))
        )

    return Moved(node, source, place)


def _repeat(node: Node) -> Definition | None:
    source = node.args[0]
    assert isinstance(source, Node)
    shape = shape_of(source)

    def place(index: Index, ranges: IndexRanges) -> Index:
        own = index[len(index) - len(shape) :]
        return tuple(
            ZERO if size == 1 else ranges.divmod(i, size)[1] for i, size in zip(own, shape, strict=True)
        )

    return Moved(node, source, place)


def _reshape(node: Node) -> Definition | None:
    source = node.args[0]
    assert isinstance(source, Node)

    def place(index: Index, ranges: IndexRanges) -> Index:
        return ranges.split(ranges.linear(index, shape_of(node)), shape_of(source))

    return Moved(node, source, place)


def _embedding(node: Node) -> Definition | None:
    table, places = node.args[0], node.args[1]
    assert isinstance(table, Node) and isinstance(places, Node)
    return Looked(node, table, (places, None), 0, places.meta["val"].dim(), wraps=False)


def _index_select(node: Node) -> Definition | None:
    table, dim, places = node.args[0], argument(node, "dim"), argument(node, "index")
    assert isinstance(table, Node)
    rank = table.meta["val"].dim()
    if rank == 0 or places.meta["val"].dim() != 1:
        return None
    chosen = tuple(places if d == dim % rank else None for d in range(rank))
    return Looked(node, table, chosen, dim % rank, 1, wraps=False)


def _index(node: Node) -> Definition | None:
    table, given = node.args[0], node.args[1]
    assert isinstance(table, Node) and isinstance(given, (list, tuple))
    places = [p if isinstance(p, Node) else None for p in given]
    places += [None] * (table.meta["val"].dim() - len(places))
    known = [d for d, p in enumerate(places) if p is not None]
    if any(dtype_of(p) not in (torch.int64, torch.int32) for p in places if p is not None):
        return None
    together = known == list(range(known[0], known[-1] + 1))
    rank = max(p.meta["val"].dim() for p in places if p is not None)
    return Looked(node, table, tuple(places), known[0] if together else 0, rank)


def _gather(node: Node) -> Definition | None:
    table, dim, places = node.args[0], argument(node, "dim"), argument(node, "index")
    assert isinstance(table, Node)
    rank = table.meta["val"].dim()
    return Gathered(node, table, dim % rank, places) if rank and places.meta["val"].dim() == rank else None


_MAKERS: Mapping[str, Callable[[Node], Definition | None]] = {
    **dict.fromkeys(("full", "full_like", "new_full", "scalar_tensor"), _full),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), _filled_with(0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _filled_with(1)),
    **dict.fromkeys(("empty", "empty_like", "new_empty"), _filled_with(0)),
    **dict.fromkeys(("empty_strided", "new_empty_strided", "empty_permuted"), _filled_with(0)),
    "arange": _arange,
    "iota": _arange,
    "cat": _cat,
    "slice_scatter": _put,
    "select_scatter": _put,
    "constant_pad_nd": _pad,
    "flip": _flip,
    "repeat": _repeat,
    "reshape": _reshape,
    "embedding": _embedding,
    "index_select": _index_select,
    "index": _index,
    "_unsafe_index": _index,
    "gather": _gather,
}
