"""How an element of a value is made: of which elements of other values, and by which instructions.

`operators.py` says which operator is made how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import sympy
import torch
from torch.fx import Node

from dicp.loops.formulas import Formula
from dicp.loops.index import Affine, IndexRanges, Size, added, is_nonnegative, product
from dicp.loops.primitives import BodyBuilder, Number, Value, held
from dicp.passes.lowering.values import Index, dtype_of, is_tensor, number_of, shape_of

__all__ = [
    "Body",
    "Counted",
    "Definition",
    "Filled",
    "Gathered",
    "Joined",
    "Looked",
    "Moved",
    "NotDivided",
    "Padded",
    "PieceRanges",
    "Pointwise",
    "Split",
    "broadcast",
    "is_one_loop",
    "minus",
]

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
        distance = added(border, minus(at.constant))
        if factor != 1:
            if not isinstance(distance, int) or not isinstance(factor, int) or factor < 0:
                return NotDivided(node, f"{at} passes {border} at a place that is no number")
            distance = -(-distance // factor)
        assert isinstance(variable, str)
        return Split(node, variable, distance)


def is_one_loop(at: Affine) -> bool:
    """Whether an index moves with one loop, or not at all."""
    return len(at.terms) <= 1 and all(isinstance(variable, str) for variable, _ in at.terms)


def minus(size: Size) -> Size:
    return product((-1, size))


def _at_most(a: Size, b: Size) -> bool:
    return a == b or is_nonnegative(added(b, minus(a)))


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
        inner = tuple(i + minus(b) for i, b in zip(index, self.before, strict=True))
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
