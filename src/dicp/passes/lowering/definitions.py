"""How an element of a value is made: of which elements of other values, and by which instructions.

`definition_of(node)` knows operators that compute each element by itself: formulas, copies in another order, tensors out of
nothing. Reductions are in `reductions.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import sympy
import torch
from torch.fx import Node

from dicp.loops.formulas import Formula, formula_of
from dicp.loops.index import Affine, IndexRanges, Size, added, is_nonnegative, product
from dicp.loops.primitives import DTYPES, BodyBuilder, Number, Value, held
from dicp.passes.lowering.values import (
    Index,
    argument,
    dtype_of,
    is_tensor,
    name_of,
    number_of,
    shape_of,
)

__all__ = ["Body", "Definition", "NotDivided", "PieceRanges", "Split", "definition_of", "is_defined"]

ZERO = Affine()


class Split(Exception):
    """A loop must be two: an element is made differently before and after `at`."""

    def __init__(self, node: Node, variable: str, at: Size) -> None:
        self.node, self.variable, self.at = node, variable, at


class NotDivided(Exception):
    """No loop can be divided so that each part makes the elements of `node` in one way."""

    def __init__(self, node: Node | None, text: str) -> None:
        super().__init__(text)
        self.node = node


class PieceRanges(IndexRanges):
    """Ranges of loops, which joins and borders may ask to be divided."""

    all_pieces = False
    """Definitions name what they read in any part of the loops."""

    def place(self, node: Node, at: Affine, begin: Size, end: Size) -> bool:
        """Whether an index is in a range; Split where it sometimes is."""
        bounds = self.bounds(at)
        if bounds is None:
            raise NotDivided(node, f"the range of {at} is not known")
        lowest, beyond = bounds[0], added(bounds[1], 1)
        if _at_most(begin, lowest) and _at_most(beyond, end):
            return True
        if _at_most(beyond, begin) or _at_most(end, lowest):
            return False
        for border in (begin, end):
            if border not in (lowest, beyond) and _at_most(lowest, border) and _at_most(border, beyond):
                raise self._split(node, at, border)
        raise NotDivided(node, f"it is not known where {at} passes {begin} or {end}")

    def piece(self, node: Node, at: Affine, borders: Sequence[Size]) -> int:
        """The number of the range between neighbouring borders that an index is in; together they are all of its dimension."""
        bounds = self.bounds(at)
        if bounds is None:
            raise NotDivided(node, f"the range of {at} is not known")
        lowest, beyond = bounds[0], added(bounds[1], 1)
        if lowest in borders and beyond in borders:
            first = borders.index(lowest)
            if borders[first + 1] == beyond:
                return first
            raise self._split(node, at, borders[first + 1])
        for number, (begin, end) in enumerate(pairwise(borders)):
            if self.place(node, at, begin, end):
                return number
        raise NotDivided(node, f"{at} is outside of what is joined")

    def _split(self, node: Node, at: Affine, border: Size) -> Exception:
        if not is_one_loop(at):
            return NotDivided(node, f"{at} is not one loop")
        variable, factor = at.terms[0]
        distance = added(border, _minus(at.constant))
        if factor != 1:
            if not isinstance(distance, int) or not isinstance(factor, int) or factor < 0:
                return NotDivided(node, f"{at} passes {border} at a place that is no number")
            distance = -(-distance // factor)
        assert isinstance(variable, str)
        return Split(node, variable, distance)


def is_one_loop(at: Affine) -> bool:
    """Whether an index moves with one loop, or not at all."""
    return len(at.terms) <= 1 and all(isinstance(variable, str) for variable, _ in at.terms)


def _minus(size: Size) -> Size:
    return product((-1, size))


def _at_most(a: Size, b: Size) -> bool:
    return a == b or is_nonnegative(added(b, _minus(a)))


class Body(BodyBuilder, Protocol):
    """What definitions append to."""

    ranges: PieceRanges

    def index(self, index: Affine) -> Value:
        """An index as an int64."""

    def checked(self, operand: Value, size: Size, wraps: bool = True) -> Affine:
        """A value as an index of a dimension."""

    def memory(self, node: Node, index: Index) -> Value:
        """An element of what is in memory."""

    def literal(self, number: Number | sympy.Expr, dtype: torch.dtype) -> Value:
        """A number, or one computed from sizes."""


@dataclass(frozen=True)
class Definition(ABC):
    node: Node

    @abstractmethod
    def reads(self, index: Index, ranges: PieceRanges) -> Sequence[tuple[Node, Index]]:
        """The elements of other values that an element is made of."""

    @abstractmethod
    def build(self, body: Body, operands: Sequence[Value], index: Index) -> Value:
        """Appends what makes the element, of the values of `reads`; gives it in `held` of the node's dtype."""

    def tables(self) -> Sequence[Node]:
        """Values that are read at places which only the run knows: they must be in memory."""
        return ()

    @property
    def divides(self) -> bool:
        """Whether parts of its loops may differ."""
        return False


@dataclass(frozen=True)
class Pointwise(Definition):
    formula: Formula

    def reads(self, index: Index, ranges: PieceRanges) -> Sequence[tuple[Node, Index]]:
        return [(n, broadcast(n, index)) for n in self.formula.operands if is_tensor(n)]

    def build(self, body: Body, operands: Sequence[Value], index: Index) -> Value:
        left = iter(operands)
        values = [next(left) if is_tensor(n) else _number(body, n) for n in self.formula.operands]
        return self.formula.build(body, values)


def broadcast(node: Node, index: Index) -> Index:
    """The index in an operand of an element of the result."""
    shape = shape_of(node)
    own = index[len(index) - len(shape) :]
    return tuple(ZERO if size == 1 else part for part, size in zip(own, shape, strict=True))


def _number(body: Body, node: Node) -> Value:
    """A number that the graph computes from sizes, in the dtype that formulas expect."""
    value = node.meta["val"]
    expression = (
        value.node.expr if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value
    )
    if isinstance(value, bool | torch.SymBool):
        return body.literal(expression, torch.bool)
    return body.literal(
        expression, torch.float64 if isinstance(value, float | torch.SymFloat) else torch.int64
    )


@dataclass(frozen=True)
class Filled(Definition):
    """One number everywhere."""

    number: Any

    def reads(self, index: Index, ranges: PieceRanges) -> Sequence[tuple[Node, Index]]:
        return ()

    def build(self, body: Body, operands: Sequence[Value], index: Index) -> Value:
        return _literal(body, self.number, held(dtype_of(self.node)))


def _literal(body: Body, number: Any, dtype: torch.dtype) -> Value:
    if isinstance(number, Node):
        return body.cast(_number(body, number), dtype)
    return body.literal(number, dtype)


@dataclass(frozen=True)
class Counted(Definition):
    """start, start + step, ..."""

    start: Any
    step: Any

    def reads(self, index: Index, ranges: PieceRanges) -> Sequence[tuple[Node, Index]]:
        return ()

    def build(self, body: Body, operands: Sequence[Value], index: Index) -> Value:
        dtype = held(dtype_of(self.node))
        if all(isinstance(_plain(n), (int, torch.SymInt)) for n in (self.start, self.step)):
            at = index[0] * number_of(self.step) + number_of(self.start)
            return body.cast(body.index(at), dtype)
        wide = torch.float64
        number = body.cast(body.index(index[0]), wide)
        scaled = body.op("mul", number, body.cast(_literal(body, self.step, wide), wide))
        return body.cast(body.op("add", scaled, body.cast(_literal(body, self.start, wide), wide)), dtype)


def _plain(value: Any) -> Any:
    return value.meta["val"] if isinstance(value, Node) else value


@dataclass(frozen=True)
class Joined(Definition):
    """Values one behind the other along a dimension: `cat`, and what puts one value into another."""

    dim: int
    pieces: tuple[tuple[Size, Size, Node, Size], ...]
    """(begin, end, value, what is added to the index of the dimension in it)."""

    @property
    def divides(self) -> bool:
        return True

    def reads(self, index: Index, ranges: PieceRanges) -> Sequence[tuple[Node, Index]]:
        at = index[self.dim]
        if ranges.all_pieces:
            if not is_one_loop(at):
                raise NotDivided(self.node, f"{at} is not one loop")
            return [self._read(index, node, shift) for _, _, node, shift in self.pieces]
        borders = [0, *(end for _, end, _, _ in self.pieces)]
        _, _, node, shift = self.pieces[ranges.piece(self.node, at, borders)]
        return [self._read(index, node, shift)]

    def _read(self, index: Index, node: Node, shift: Size) -> tuple[Node, Index]:
        at = (*index[: self.dim], index[self.dim] + shift, *index[self.dim + 1 :])
        return node, at if len(shape_of(node)) == len(at) else (*at[: self.dim], *at[self.dim + 1 :])

    def build(self, body: Body, operands: Sequence[Value], index: Index) -> Value:
        return body.cast(operands[0], held(dtype_of(self.node)))


@dataclass(frozen=True)
class Padded(Definition):
    """A number around a value; negative widths cut."""

    source: Node
    before: tuple[Size, ...]
    number: Any

    @property
    def divides(self) -> bool:
        return True

    def reads(self, index: Index, ranges: PieceRanges) -> Sequence[tuple[Node, Index]]:
        inner = tuple(i + _minus(b) for i, b in zip(index, self.before, strict=True))
        sizes = shape_of(self.source)
        for part, size, before, whole in zip(inner, sizes, self.before, shape_of(self.node), strict=True):
            if before == 0 and size == whole:
                continue
            if ranges.all_pieces:
                if not is_one_loop(part):
                    raise NotDivided(self.node, f"{part} is not one loop")
            elif not ranges.place(self.node, part, 0, size):
                return ()
        return [(self.source, inner)]

    def build(self, body: Body, operands: Sequence[Value], index: Index) -> Value:
        return operands[0] if operands else _literal(body, self.number, held(dtype_of(self.node)))


@dataclass(frozen=True)
class Moved(Definition):
    """The elements of one value in another order."""

    source: Node
    place: Callable[[Index, IndexRanges], Index]

    def reads(self, index: Index, ranges: PieceRanges) -> Sequence[tuple[Node, Index]]:
        return [(self.source, self.place(index, ranges))]

    def build(self, body: Body, operands: Sequence[Value], index: Index) -> Value:
        return operands[0]


@dataclass(frozen=True)
class Looked(Definition):
    """Elements of a table at places that other values say."""

    table: Node
    places: tuple[Node | None, ...]
    """For each dimension of the table: the values that say where; they have the broadcast shape of all of them."""
    first: int
    """The dimension of the result where the shape of the places begins."""
    rank: int
    """Of that shape."""
    wraps: bool = True

    def reads(self, index: Index, ranges: PieceRanges) -> Sequence[tuple[Node, Index]]:
        own = index[self.first : self.first + self.rank]
        return [(n, broadcast(n, own)) for n in self.places if n is not None]

    def tables(self) -> Sequence[Node]:
        return (self.table,)

    def build(self, body: Body, operands: Sequence[Value], index: Index) -> Value:
        found = iter(operands)
        rest = iter((*index[: self.first], *index[self.first + self.rank :]))
        at = [
            next(rest)
            if place is None
            else body.checked(body.cast(next(found), torch.int64), size, self.wraps)
            for place, size in zip(self.places, shape_of(self.table), strict=True)
        ]
        return body.memory(self.table, tuple(at))


@dataclass(frozen=True)
class Gathered(Definition):
    """`gather`: a place along one dimension for each element."""

    table: Node
    dim: int
    places: Node

    def reads(self, index: Index, ranges: PieceRanges) -> Sequence[tuple[Node, Index]]:
        return [(self.places, index)]

    def tables(self) -> Sequence[Node]:
        return (self.table,)

    def build(self, body: Body, operands: Sequence[Value], index: Index) -> Value:
        at = body.checked(operands[0], shape_of(self.table)[self.dim], False)
        return body.memory(self.table, (*index[: self.dim], at, *index[self.dim + 1 :]))


# --- which operator is what ---


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
            pieces.append((begin, end, piece, _minus(begin)))
        begin = end
    return Joined(node, dim, tuple(pieces)) if pieces else None


MOST_PIECES = 32
"""More are copied one by one by ATen: each is a loop of its own in the code."""


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
    pieces = ((0, begin, into, 0), (begin, end, source, _minus(begin)), (end, size, into, 0))
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
