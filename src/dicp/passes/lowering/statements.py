"""Statements: values that a kernel computes element by element over loops, and what one reads of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch.fx import Node

from dicp.loops.index import Affine, IndexRanges, Size, product
from dicp.passes.lowering.definitions import PieceRanges, broadcast
from dicp.passes.lowering.realise import GraphValues
from dicp.passes.lowering.values import Index, hint_of, shape_of
from dicp.passes.lowering.views import has_index, is_view, source_index, viewed

__all__ = ["Read", "Statement", "index_in_root", "loop_index", "reads_of", "statement_of"]

ZERO = Affine()


@dataclass(eq=False)
class Statement:
    """A realised value of a kernel: its own loops, from the outermost."""

    node: Node
    kind: Literal["element", "reduce", "scan", "copy"]
    dims: tuple[int, ...]
    """For each loop: a dimension of the value, or of a reduction's source."""
    sizes: tuple[Size, ...]
    rank: int
    """Of the value or source that the loops run over."""
    kept: int | None = None
    """How many of the loops are rows, of reductions and scans."""
    phase: int = 0

    @property
    def total(self) -> Size:
        return product(self.sizes)

    @property
    def rows(self) -> Size | None:
        return None if self.kept is None else product(self.sizes[: self.kept])

    def index(self, linear: Affine, ranges: IndexRanges) -> Index:
        """Of the value, or of a reduction's source, in the iteration of that number."""
        result = [ZERO] * self.rank
        for dim, part in zip(self.dims, ranges.split(linear, self.sizes), strict=True):
            result[dim] = part
        return tuple(result)

    def row_index(self, row: Affine, ranges: IndexRanges) -> Index:
        """Of a reduction's source, where the row of that number begins."""
        result = [ZERO] * self.rank
        sizes = self.sizes[: self.kept]
        for dim, part in zip(self.dims, ranges.split(row, sizes), strict=False):
            result[dim] = part
        return tuple(result)


def statement_of(node: Node, values: GraphValues) -> Statement:
    reduction = values.reductions.get(node)
    if reduction is None:
        copy = node in values.copies
        of = node.args[0] if copy else node
        assert isinstance(of, Node)
        shape = shape_of(of)
        dims = [d for d in _by_stride(of, range(len(shape))) if shape[d] != 1]
        return Statement(
            node, "copy" if copy else "element", tuple(dims), tuple(shape[d] for d in dims), len(shape)
        )
    shape = shape_of(reduction.source)
    kept = [d for d in reduction.kept() if shape[d] != 1]
    gone = [d for d in reduction.dims if shape[d] != 1]
    gone = gone if reduction.scan else _by_stride(reduction.source, gone)
    dims = [*kept, *gone]
    return Statement(
        node,
        "scan" if reduction.scan else "reduce",
        tuple(dims),
        tuple(shape[d] for d in dims),
        len(shape),
        len(kept),
    )


def _by_stride(node: Node, dims: Sequence[int]) -> list[int]:
    """From far apart in memory to neighbours."""
    strides = [hint_of(s) for s in node.meta["val"].stride()]
    return sorted(dims, key=lambda d: (-strides[d], d))


def loop_index(
    ranges: IndexRanges, sizes: Sequence[Size], outer: int, bounds: dict[str, tuple[Size, Size]] | None = None
) -> tuple[Index, tuple[str, ...]]:
    """The variables of a kernel's loops: `i0, i1...` over rows, then `j0, j1...` over columns."""
    names = tuple(f"i{k}" if k < outer else f"j{k - outer}" for k in range(len(sizes)))
    index = []
    for name, size in zip(names, sizes, strict=True):
        begin, end = (bounds or {}).get(name, (0, size))
        index.append(ranges.range(name, begin, end))
    return tuple(index), names


Read = tuple[Node, Node, Index | None]
"""(root, the view of it that is read, index in the view; None: anywhere)."""


def reads_of(statement: Statement, linear: Affine, ranges: PieceRanges, values: GraphValues) -> list[Read]:
    """What a statement reads of realised values in an iteration, formulas and views between followed.

    Raises NotDivided where the loops do not fit what is joined.
    """
    node, index = statement.node, statement.index(linear, ranges)
    found: list[Read] = []
    seen: set[tuple[Node, Index]] = set()
    todo: list[tuple[Node, Index]] = []

    def follow(defined: Node, place: Index) -> None:
        definition = values.definitions[defined]
        todo.extend(definition.reads(place, ranges))
        found.extend((values.root(table), table, None) for table in definition.tables())

    if statement.kind == "element":
        follow(node, index)
    elif statement.kind == "copy":
        source = node.args[1]
        assert isinstance(source, Node)
        todo.append((source, broadcast(source, index)))
    else:
        todo.append((values.reductions[node].source, index))
    while todo:
        read = todo.pop()
        if read in seen:
            continue
        seen.add(read)
        at, place = read
        root = values.root(at)
        if root in values.realised:
            found.append((root, at, place))
        elif is_view(at):
            todo.append((viewed(at), source_index(at, place, ranges)))
        else:
            follow(at, place)
    return found


def index_in_root(view: Node, root: Node, index: Index, ranges: IndexRanges) -> Index | None:
    """The index in a value of an element of a view of it; None for views that only strides describe."""
    while view is not root:
        if not has_index(view):
            return None
        view, index = viewed(view), source_index(view, index, ranges)
    return index
