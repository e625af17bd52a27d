"""Which statements run in one kernel, and in which of its phases.

A statement joins the kernel of its last producer, or one that reads the same values, where it can run in the same loops: both
have as many iterations, loops of both lists of sizes can be cut to common ones, and what it reads of the kernel lies at the same
element, or in the same row. What lies elsewhere in the row, or is the result of a reduction, is there one phase later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from dicp.loops.index import Affine, Size, added, is_nonnegative, product, quotient, refined
from dicp.passes.lowering.definitions import NotDivided, PieceRanges
from dicp.passes.lowering.realise import GraphValues
from dicp.passes.lowering.statements import (
    Read,
    Statement,
    index_in_root,
    loop_index,
    reads_of,
    statement_of,
)
from dicp.passes.lowering.values import address_of

__all__ = ["CallStep", "FusedKernel", "cut", "fused"]

TRIED = 6
"""Kernels that read the same as a statement: how many of them it tries to join."""
WIDEST_SCRATCH = 1 << 16
"""Elements of a row that are kept from one phase to a later one."""


@dataclass(eq=False)
class CallStep:
    """A step that is no kernel: a product, an operator of ATen."""

    node: Node
    position: int = 0


@dataclass(eq=False)
class FusedKernel:
    """Statements in common loops."""

    statements: list[Statement] = field(default_factory=list)
    domain: tuple[Size, ...] = ()
    """The loops' sizes, from the outermost."""
    rows: Size | None = None
    """The product of those over rows; None while no statement asks for rows."""
    position: int = 0
    members: dict[Node, Statement] = field(default_factory=dict)
    reads: set[Node] = field(default_factory=set)
    """Values of other steps."""

    def add(self, statement: Statement) -> None:
        self.statements.append(statement)
        self.members[statement.node] = statement


def cut(domain: Sequence[Size], rows: Size | None) -> int | None:
    """How many loops are over rows; None where no cut gives that many."""
    if rows is None:
        return max(len(domain) - 1, 0)
    for count in range(len(domain) + 1):
        if product(domain[:count]) == rows:
            return count
    return None


@dataclass
class Frame:
    """The loops of a kernel as indices."""

    domain: tuple[Size, ...]
    rows: Size | None
    ranges: PieceRanges
    names: tuple[str, ...]
    linear: Affine
    row: Affine
    outer: int

    @classmethod
    def of(cls, domain: tuple[Size, ...], rows: Size | None) -> Frame | None:
        outer = cut(domain, rows)
        if outer is None:
            return None
        ranges = PieceRanges()
        ranges.all_pieces = True
        index, names = loop_index(ranges, domain, outer)
        return cls(
            domain,
            rows,
            ranges,
            names,
            ranges.linear(index, domain),
            ranges.linear(index[:outer], domain[:outer]),
            outer,
        )

    def of_row(self, place: Affine) -> Affine | None:
        """Where a place lies in its row; None: in another row, or that is not known."""
        inner = product(self.domain[self.outer :])
        rest = place + self.row * product((-1, inner))
        if set(rest.variables()) & set(self.names[: self.outer]):
            return None
        bounds = self.ranges.bounds(rest)
        if bounds is None or not is_nonnegative(bounds[0]):
            return None
        return rest if is_nonnegative(added(added(inner, -1), product((-1, bounds[1])))) else None


def fused(values: GraphValues) -> list[FusedKernel | CallStep]:
    """The steps of a graph."""
    return _Fusion(values).run()


class _Fusion:
    def __init__(self, values: GraphValues) -> None:
        self.values = values
        self.steps: list[FusedKernel | CallStep] = []
        self.step_of: dict[Node, FusedKernel | CallStep] = {}
        self.readers: dict[Node, list[FusedKernel]] = {}
        self.latest_reader: dict[Node, int] = {}

    def run(self) -> list[FusedKernel | CallStep]:
        for node in self.values.nodes:
            if self.values.is_call(node):
                self._append(CallStep(node), node)
                self._mark(self.values.operands(node), self.steps[-1])
            elif node in self.step_of or node.op != "call_function":
                continue
            elif node in self.values.copies or (
                node in self.values.realised
                and (node in self.values.definitions or node in self.values.reductions)
            ):
                self._place(statement_of(node, self.values))
            elif node in self.values.realised and node.args and node.args[0] in self.step_of:
                self.step_of[node] = self.step_of[node.args[0]]  # type: ignore[index]
        return self.steps

    def _append(self, step: FusedKernel | CallStep, node: Node) -> None:
        step.position = len(self.steps)
        self.steps.append(step)
        self.step_of[node] = step

    def _mark(self, roots: Iterator[Node] | set[Node], step: FusedKernel | CallStep) -> None:
        for root in roots:
            self.latest_reader[root] = max(self.latest_reader.get(root, -1), step.position)
            if isinstance(step, FusedKernel):
                known = self.readers.setdefault(root, [])
                if not known or known[-1] is not step:
                    known.append(step)

    def _place(self, statement: Statement) -> None:
        reads = self.values.inlined_reads(statement.node)
        after = max((self.step_of[r].position for r in reads if r in self.step_of), default=-1)
        if statement.kind == "copy":
            target = self.values.root(statement.node)
            after = max(after, self.latest_reader.get(target, -1))
        for kernel in self._candidates(reads, after):
            if self._joins(statement, kernel):
                break
        else:
            kernel = FusedKernel(domain=statement.sizes, rows=statement.rows)
            self._append(kernel, statement.node)
        kernel.add(statement)
        self.step_of[statement.node] = kernel
        others = {r for r in reads if r not in kernel.members}
        kernel.reads |= others
        self._mark(others, kernel)

    def _candidates(self, reads: set[Node], after: int) -> Iterator[FusedKernel]:
        """The kernel that computes what is read last, then those that read the same."""
        seen: set[int] = set()
        first = self.steps[after] if after >= 0 else None
        if isinstance(first, FusedKernel):
            seen.add(first.position)
            yield first
        for root in sorted(reads, key=lambda r: r.name):
            for kernel in self.readers.get(root, [])[-TRIED:]:
                if kernel.position >= after and kernel.position not in seen and len(seen) < 2 * TRIED:
                    seen.add(kernel.position)
                    yield kernel

    def _joins(self, statement: Statement, kernel: FusedKernel) -> bool:
        """Whether a statement can run in the loops of a kernel; then its phase and the kernel's loops are set."""
        total, have, rows = statement.total, product(kernel.domain), kernel.rows
        if total == 0 or have == 0:
            return False
        sizes = statement.sizes
        if statement.rows is not None:
            if total != have or rows not in (None, statement.rows):
                return False
            rows = statement.rows
        elif total != have:
            inner = None if rows is None or total != rows else quotient(have, rows)
            if inner is None:
                return False
            sizes = (*sizes, inner)
        domain = refined(kernel.domain, sizes)
        frame = None if domain is None else Frame.of(domain, rows)
        if frame is None or domain is None:
            return False
        phase = self._phase(statement, kernel, frame)
        if phase is None or not self._divides(statement, kernel, phase):
            return False
        statement.phase, kernel.domain, kernel.rows = phase, domain, rows
        return True

    def _divides(self, statement: Statement, kernel: FusedKernel, phase: int) -> bool:
        """A phase with a scan has one part: nothing in it may be divided."""
        same = [s for s in kernel.statements if s.phase == phase]
        if statement.kind != "scan" and not any(s.kind == "scan" for s in same):
            return True
        return not any(self._is_divided(s) for s in (*same, statement))

    def _is_divided(self, statement: Statement) -> bool:
        seen: set[Node] = set()
        todo = [statement.node]
        while todo:
            node = todo.pop()
            definition = self.values.definitions.get(node)
            if definition is not None and definition.divides:
                return True
            seen.add(node)
            for operand in self.values.operands(node):
                if operand not in self.values.realised and operand not in seen:
                    todo.append(operand)
        return False

    def _phase(self, statement: Statement, kernel: FusedKernel, frame: Frame) -> int | None:
        """The first phase in which all that the statement reads of the kernel is there; None: there is none."""
        is_row = is_row_statement(statement, frame)
        try:
            reads = reads_of(statement, frame.row if is_row else frame.linear, frame.ranges, self.values)
        except NotDivided:
            return None
        phase = 0
        for read in reads:
            needed = self._after(read, is_row, kernel, frame)
            if needed is None:
                return None
            phase = max(phase, needed)
        if statement.kind == "copy":
            return self._copy_phase(statement, is_row, phase, kernel, frame)
        if any(root in self.values.mutated for root, _, _ in reads) and any(
            s.kind == "copy" for s in kernel.statements
        ):
            return None
        return phase

    def _after(self, read: Read, is_row: bool, kernel: FusedKernel, frame: Frame) -> int | None:
        """The first phase in which an element is there."""
        root, view, index = read
        member = kernel.members.get(root)
        if member is None:
            return 0
        if index is None or member.kind == "copy":
            return None
        place = index_in_root(view, root, index, frame.ranges)
        if place is None:
            return None
        if member.kind == "reduce":
            dims = self.values.reductions[root].value_dims()
            kept = {d: v for d, v in zip(self.values.reductions[root].kept(), dims, strict=True)}
            own = [place[kept[d]] for d in member.dims[: member.kept]]
            same = frame.ranges.linear(own, member.sizes[: member.kept]) == frame.row
            return member.phase + 1 if same else None
        at = frame.ranges.linear([place[d] for d in member.dims], member.sizes)
        if member.kind == "element" and is_row_statement(member, frame):
            return member.phase if at == frame.row else None
        if not is_row and at == frame.linear:
            return member.phase
        if frame.rows is None:
            return None
        inner = product(frame.domain[frame.outer :])
        if isinstance(inner, int) and inner > WIDEST_SCRATCH:
            return None
        return member.phase + 1 if frame.of_row(at) is not None else None

    def _copy_phase(
        self, statement: Statement, is_row: bool, phase: int, kernel: FusedKernel, frame: Frame
    ) -> int | None:
        """An input is stored to when all that read it have done so, at the same element."""
        target = self.values.root(statement.node)
        view = statement.node.args[0]
        assert isinstance(view, Node)
        index = statement.index(frame.row if is_row else frame.linear, frame.ranges)
        own = address_of(view, target, index)
        for member in (*kernel.statements, statement):
            row = is_row_statement(member, frame)
            try:
                reads = reads_of(member, frame.row if row else frame.linear, frame.ranges, self.values)
            except NotDivided:
                return None
            for root, read, place in reads:
                if root is not target:
                    continue
                if place is None or row != is_row or address_of(read, target, place) != own:
                    return None
                if member is not statement:
                    phase = max(phase, member.phase)
        return phase


def is_row_statement(statement: Statement, frame: Frame) -> bool:
    """Whether a statement is computed once a row of these loops."""
    return (
        frame.rows is not None
        and statement.kind in ("element", "copy")
        and statement.total == frame.rows
        and statement.total != product(frame.domain)
    )
