"""The loop kernel of statements that run together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import Node

from dicp.loops.index import Affine, Size, free_symbols, product
from dicp.loops.ir import (
    KernelParameter,
    Load,
    Loop,
    LoopKernel,
    Phase,
    PhasePart,
    Reduce,
    RowBuffer,
    RowNest,
    Store,
)
from dicp.loops.primitives import Value, held
from dicp.loops.simplify import kernel_sizes, simplified_nest
from dicp.passes.lowering.definitions import NotDivided, PieceRanges, Split, broadcast
from dicp.passes.lowering.emitter import Emitter, Parameters
from dicp.passes.lowering.fusion import Frame, FusedKernel, is_row_statement
from dicp.passes.lowering.realise import GraphValues
from dicp.passes.lowering.statements import Statement, index_in_root, loop_index, reads_of
from dicp.passes.lowering.values import Index, address_of, dtype_of
from dicp.passes.lowering.views import is_view, source_index, viewed

__all__ = ["WrittenKernel", "write_kernel"]

Bounds = dict[str, tuple[Size, Size]]
ZERO = Affine()


@dataclass(frozen=True)
class WrittenKernel:
    kernel: LoopKernel
    buffers: tuple[Node, ...]
    """The roots whose memory the parameters are."""


def write_kernel(kernel: FusedKernel, values: GraphValues, stored: set[Node]) -> WrittenKernel:
    """`stored`: values that other steps or the graph's caller read."""
    return _KernelWriter(kernel, values, stored).write()


class _KernelWriter:
    def __init__(self, kernel: FusedKernel, values: GraphValues, stored: set[Node]) -> None:
        self.kernel, self.values, self.stored = kernel, values, stored
        frame = Frame.of(kernel.domain, kernel.rows)
        assert frame is not None, "the fusion found loops over rows"
        self.frame = frame
        self.scratch = self._kept()

    def _kept(self) -> dict[Node, str]:
        """Elements that a later phase reads, with the names of the rows that keep them."""
        kept: dict[Node, str] = {}
        for statement in self.kernel.statements:
            row = is_row_statement(statement, self.frame)
            start = self.frame.row if row else self.frame.linear
            for root, _, _ in reads_of(statement, start, self.frame.ranges, self.values):
                member = self.kernel.members.get(root)
                if member is None or member.kind == "reduce" or is_row_statement(member, self.frame):
                    continue
                if member.phase < statement.phase:
                    kept.setdefault(root, f"r{len(kept)}")
        return kept

    def write(self) -> WrittenKernel:
        parameters = Parameters()
        nests = tuple(self._nests({}, parameters))
        loads = {i.buffer for nest in nests for i in _accesses(nest) if isinstance(i, Load)}
        stores = {i.buffer for nest in nests for i in _accesses(nest) if isinstance(i, Store)}
        used = {root: name for root, name in parameters.names.items() if name in loads | stores}
        described = tuple(
            KernelParameter(name, dtype_of(root), name in loads, name in stores)
            for root, name in used.items()
        )
        sizes = tuple(free_symbols(kernel_sizes(nests)))
        return WrittenKernel(LoopKernel(described, sizes, nests), tuple(used))

    def _nests(self, rows: Bounds, parameters: Parameters) -> Iterator[RowNest]:
        """One nest, or several where rows are computed differently."""
        columns: dict[int, list[Bounds]] = {}
        while True:
            writer = _NestWriter(self, rows, columns, parameters)
            try:
                nest = writer.write()
                break
            except Split as split:
                parts = _divided(writer.bounds, split, self.frame)
                if split.variable.startswith("i"):
                    for part in parts:
                        yield from self._nests({**rows, split.variable: part[split.variable]}, parameters)
                    return
                found = columns.setdefault(writer.phase, [{}])
                found[writer.part : writer.part + 1] = parts
        yield simplified_nest(nest, fixed=self.kernel.rows is not None)


def _accesses(nest: RowNest) -> Iterator[Load | Store]:
    for phase in nest.phases:
        for part in phase.parts:
            yield from (i for i in part.body if isinstance(i, (Load, Store)))


def _divided(bounds: Bounds, split: Split, frame: Frame) -> list[Bounds]:
    whole = (0, frame.domain[frame.names.index(split.variable)])
    begin, end = bounds.get(split.variable, whole)
    if split.at in (begin, end):
        raise NotDivided(split.node, f"{split.variable} is already divided at {split.at}")
    own = {name: b for name, b in bounds.items() if name.startswith(split.variable[0])}
    return [{**own, split.variable: (begin, split.at)}, {**own, split.variable: (split.at, end)}]


class _NestWriter:
    def __init__(
        self, owner: _KernelWriter, rows: Bounds, columns: dict[int, list[Bounds]], parameters: Parameters
    ) -> None:
        self.owner, self.kernel, self.values, self.frame = owner, owner.kernel, owner.values, owner.frame
        self.rows, self.columns = rows, columns
        names = self.frame.names[: self.frame.outer]
        self.emitter = Emitter(
            PieceRanges(), parameters, self.values.root, names, hoists=self.kernel.rows is not None
        )
        self.row_values: dict[Node, Value] = {}
        self.here: dict[Node, Value] = {}
        self.found: dict[tuple[Node, Index], Value] = {}
        self.phases: list[Phase] = []
        self.phase = self.part = 0
        self.bounds: Bounds = {}
        self._enter(rows)

    def _enter(self, bounds: Bounds) -> None:
        """Loops with other bounds."""
        self.bounds = bounds
        self.emitter.ranges = PieceRanges()
        index, _ = loop_index(self.emitter.ranges, self.frame.domain, self.frame.outer, bounds)
        ranges, outer = self.emitter.ranges, self.frame.outer
        self.linear = ranges.linear(index, self.frame.domain)
        self.row = ranges.linear(index[:outer], self.frame.domain[:outer])

    def write(self) -> RowNest:
        for phase in range(1 + max(s.phase for s in self.kernel.statements)):
            self.phase = phase
            now = [s for s in self.kernel.statements if s.phase == self.phase]
            self._row(s for s in now if is_row_statement(s, self.frame))
            columns = [s for s in now if not is_row_statement(s, self.frame)]
            if columns:
                self._columns(columns)
        self._flush()
        size = product(self.frame.domain[self.frame.outer :])
        scratch = tuple(RowBuffer(name, dtype_of(n), size) for n, name in self.owner.scratch.items())
        return RowNest(self._loops(0, self.frame.outer, self.rows), tuple(self.phases), scratch)

    def _loops(self, first: int, last: int, bounds: Bounds) -> tuple[Loop, ...]:
        pairs = zip(self.frame.names[first:last], self.frame.domain[first:last], strict=True)
        return tuple(Loop(name, *bounds.get(name, (0, size))) for name, size in pairs)

    def _flush(self) -> None:
        body = self.emitter.take_row()
        if body:
            self.phases.append(Phase((PhasePart((), body),)))

    def _row(self, statements: Iterator[Statement]) -> None:
        self._enter(self.rows)
        self.emitter.in_row, self.found = True, {}
        for s in statements:
            index = s.index(self.row, self.emitter.ranges)
            value = self._element(s, index)
            self.row_values[s.node] = value
            self._store(s, index, value)
        self.emitter.in_row = False

    def _columns(self, statements: list[Statement]) -> None:
        results: dict[Statement, tuple[Value, ...]] = {}
        for s in statements:
            if s.kind == "reduce":
                dtypes = self.values.reductions[s.node].results()
                results[s] = tuple(self.emitter.row_result(self.emitter.new(d)) for d in dtypes)
        parts = []
        for part, bounds in enumerate(self.columns.get(self.phase, [{}])):
            self.part = part
            self._enter({**self.rows, **bounds})
            self.emitter.begin_part()
            self.here, self.found = {}, {}
            self._body(statements, results)
            loops = self._loops(self.frame.outer, len(self.frame.domain), bounds)
            parts.append(PhasePart(loops, tuple(self.emitter.column.instructions)))
        self._flush()
        self.phases.append(Phase(tuple(parts)))
        self.here = {}
        self._enter(self.rows)
        self.emitter.in_row = True
        for s, made in results.items():
            reduction = self.values.reductions[s.node]
            value = self.row_values[s.node] = reduction.finish(self.emitter, made)
            if s.node in self.owner.stored:
                source = s.row_index(self.row, self.emitter.ranges)
                index = [ZERO] * node_rank(s.node)
                for dim, at in zip(reduction.kept(), reduction.value_dims(), strict=True):
                    index[at] = source[dim]
                self._to_memory(s.node, tuple(index), value)
        self.emitter.in_row = False

    def _body(self, statements: list[Statement], results: dict[Statement, tuple[Value, ...]]) -> None:
        last: list[tuple[Statement, Index, Value]] = []
        for s in statements:
            index = s.index(self.linear, self.emitter.ranges)
            if s.kind in ("reduce", "scan"):
                reduction = self.values.reductions[s.node]
                operand = self.value(reduction.source, index)
                operands = reduction.operands(self.emitter, operand, index)
                if s.kind == "reduce":
                    self.emitter.append(Reduce(results[s], reduction.kind, operands))  # type: ignore[arg-type]
                    continue
                value = reduction.finish(self.emitter, (self.emitter.scan(reduction.kind, operands),))  # type: ignore[arg-type]
            else:
                value = self._element(s, index)
            self.here[s.node] = value
            if s.kind == "copy":
                last.append((s, index, value))
                continue
            self._store(s, index, value)
            if s.node in self.owner.scratch:
                self.emitter.store(self.owner.scratch[s.node], self._in_row(s, index), value)
        for s, index, value in last:
            self._store(s, index, value)

    def _in_row(self, statement: Statement, index: Index) -> Affine:
        """Where in its row an element lies."""
        place = self.emitter.ranges.linear([index[d] for d in statement.dims], statement.sizes)
        return place + self.row * product((-1, product(self.frame.domain[self.frame.outer :])))

    def _store(self, s: Statement, index: Index, value: Value) -> None:
        if s.kind == "copy":
            self._to_memory(s.node.args[0], index, value)  # type: ignore[arg-type]
        elif s.node in self.owner.stored:
            self._to_memory(s.node, index, value)

    def _to_memory(self, node: Node, index: Index, value: Value) -> None:
        root = self.values.root(node)
        self.emitter.store(self.emitter.parameters.name(root), address_of(node, root, index), value)

    # values of elements

    def _element(self, s: Statement, index: Index) -> Value:
        if s.kind == "copy":
            source = s.node.args[1]
            assert isinstance(source, Node)
            return self.emitter.cast(self.value(source, broadcast(source, index)), held(dtype_of(s.node)))
        return self._defined(s.node, index)

    def _defined(self, node: Node, index: Index) -> Value:
        definition = self.values.definitions[node]
        operands = [self.value(n, i) for n, i in definition.reads(index, self.emitter.ranges)]
        return definition.build(self.emitter, operands, index)

    def value(self, node: Node, index: Index) -> Value:
        """An element of a value or of a view of one."""
        key = (node, index)
        known = self.found.get(key)
        if known is None:
            known = self.found[key] = self._value(node, index)
        return known

    def _value(self, node: Node, index: Index) -> Value:
        root = self.values.root(node)
        if root in self.values.realised:
            member = self.kernel.members.get(root)
            return self.emitter.memory(node, index) if member is None else self._member(member, node, index)
        if is_view(node):
            return self.value(viewed(node), source_index(node, index, self.emitter.ranges))
        return self._defined(node, index)

    def _member(self, member: Statement, node: Node, index: Index) -> Value:
        known = self.row_values.get(member.node) or self.here.get(member.node)
        if known is not None:
            return known
        place = index_in_root(node, member.node, index, self.emitter.ranges)
        assert place is not None, "the fusion keeps out what only strides describe"
        at = self._in_row(member, place)
        return self.emitter.load(self.owner.scratch[member.node], at, dtype_of(member.node))


def node_rank(node: Node) -> int:
    rank: int = node.meta["val"].dim()
    return rank
