"""Which values of a graph are statements, computed once and perhaps stored; the others are computed where they are read."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator

import torch
from torch.fx import Graph, Node

from dicp.loops.index import added, is_nonnegative, product
from dicp.passes.lowering.definitions import Definition, Filled, Pointwise
from dicp.passes.lowering.operators import definition_of
from dicp.passes.lowering.reductions import Reduction, reduction_of
from dicp.passes.lowering.values import elements_of, is_tensor, name_of, shape_of, tensor_inputs
from dicp.passes.lowering.views import has_index, is_view, is_view_list, viewed

__all__ = ["GraphValues"]

aten = torch.ops.aten
_AGAIN = ("add", "sub", "mul", "neg", "clone", "_to_copy", "convert_element_type", "rsub")
"""Formulas that are rather computed for each reader than stored."""
DEEPEST = 48
"""Formulas inside one another; more are statements of one kernel."""


class GraphValues:
    """What each node of a graph is to the fusion."""

    def __init__(self, graph: Graph, called: Collection[Node] = ()) -> None:
        self.graph = graph
        self.called = called
        """Nodes that are calls although loops could compute them."""
        self.nodes = list(graph.nodes)
        self.definitions: dict[Node, Definition] = {}
        self.reductions: dict[Node, Reduction] = {}
        self.copies: list[Node] = []
        """Nodes that store to an input."""
        self._roots: dict[Node, Node] = {}
        self._classify()
        self.mutated = {self.root(node.args[0]): node for node in self.copies}  # type: ignore[arg-type]
        self.realised: set[Node] = set()
        """In memory, or in a kernel's registers or scratch: inputs, results of calls and of statements."""
        self._realise()

    def _classify(self) -> None:
        for node in self.nodes:
            if node.op != "call_function":
                continue
            if node.target is aten.copy_.default:
                self.copies.append(node)
            elif node in self.called:
                continue
            elif is_tensor(node) and not is_view(node) and node.target is not operator.getitem:
                reduction = reduction_of(node)
                if reduction is not None:
                    self.reductions[node] = reduction
                elif (definition := definition_of(node)) is not None:
                    self.definitions[node] = definition

    def is_call(self, node: Node) -> bool:
        """An operator of ATen, called as it is; perhaps one that only checks something and gives nothing."""
        return (
            node.op == "call_function"
            and node not in self.definitions
            and node not in self.reductions
            and node.target not in (operator.getitem, aten.copy_.default)
            and not is_view(node)
            and not is_view_list(node)
            and isinstance(node.meta.get("val"), (torch.Tensor, tuple, list, type(None)))
        )

    def root(self, node: Node) -> Node:
        """What a view shows a part of; of `copy_` the input that it stores to."""
        found = self._roots.get(node)
        if found is None:
            found = node
            while is_view(found) or found.target is aten.copy_.default:
                found = viewed(found) if is_view(found) else found.args[0]  # type: ignore[assignment]
            self._roots[node] = found
        return found

    def operands(self, node: Node) -> Iterator[Node]:
        """The roots of the tensors that a node reads, each once."""
        given = node.args[1:2] if node.target is aten.copy_.default else tensor_inputs(node)
        yield from dict.fromkeys(self.root(n) for n in given if isinstance(n, Node))

    def _realise(self) -> None:
        uses = self._uses()
        self._realise_memory()
        plain = self._plain(uses)
        depth: dict[Node, int] = {}
        for node in self.nodes:
            if node in self.reductions or node.op == "placeholder" or self.is_call(node):
                self.realised.add(node)
            elif node in self.definitions and node not in self.realised:
                self._formula(node, uses.get(node, []), plain)
                inner = [depth.get(n, 0) for n in self.operands(node) if n not in self.realised]
                depth[node] = 1 + max(inner, default=0)
                if depth[node] > DEEPEST:
                    self.realised.add(node)
        self._realise_before_mutation()

    def _uses(self) -> dict[Node, list[Node]]:
        """The readers of each root."""
        uses: dict[Node, list[Node]] = {}
        for node in self.nodes:
            if not is_view(node) and not is_view_list(node):
                for operand in self.operands(node):
                    uses.setdefault(operand, []).append(node)
        return uses

    def _realise_memory(self) -> None:
        """What is read from outside of kernels, or at places that only the run knows."""
        for node in self.nodes:
            if is_view(node):
                if not has_index(node):
                    self.realised.add(self.root(node))
                continue
            if is_view_list(node):
                continue
            if node.op == "output" or self.is_call(node):
                self.realised |= set(self.operands(node))
            elif node in self.definitions:
                self.realised |= {self.root(table) for table in self.definitions[node].tables()}
            if node.target is operator.getitem:
                self.realised.add(node)

    def _plain(self, uses: dict[Node, list[Node]]) -> set[Node]:
        """Values whose readers have a loop for each of their dimensions, so that they can be divided in parts."""
        plain: set[Node] = set()
        for node in reversed(self.nodes):
            readers = uses.get(node, [])
            if node in self.realised:
                plain.add(node)
            elif node in self.definitions and len(readers) == 1 and node in readers[0].all_input_nodes:
                reader = readers[0]
                if reader in self.reductions:
                    divides = not self.reductions[reader].scan  # a scan's phase has one part
                else:
                    divides = reader in plain and self._keeps_loops(reader, node)
                if divides:
                    plain.add(node)
        return plain

    def _keeps_loops(self, reader: Node, node: Node) -> bool:
        definition = self.definitions.get(reader)
        if isinstance(definition, Pointwise):
            return shape_of(reader) == shape_of(node)
        return definition is not None and definition.divides

    def _formula(self, node: Node, readers: list[Node], plain: set[Node]) -> None:
        definition = self.definitions[node]
        if isinstance(definition, Filled) or not readers:
            return
        if definition.divides and node not in plain:
            self.realised.add(node)
        elif len(readers) > 1:
            again = self._again(node)
            self.realised.add(node if again is None else again)
        elif name_of(node) not in _AGAIN and self._is_repeated(node, readers[0]):
            self.realised.add(node)

    def _again(self, node: Node) -> Node | None:
        """What a cheap formula reads, and is realised in its place: one operand of its size, the others smaller."""
        if name_of(node) not in _AGAIN or not isinstance(self.definitions[node], Pointwise):
            return None
        if any(root in self.mutated for root in self.operands(node)):
            return None
        size = elements_of(node)
        large = [n for n in node.all_input_nodes if is_tensor(n) and elements_of(n) == size]
        if len(large) != 1:
            return None
        root = self.root(large[0])
        return None if isinstance(self.definitions.get(root), Filled) else root

    def _is_repeated(self, node: Node, reader: Node) -> bool:
        """Whether the reader computes more elements than there are."""
        if reader in self.definitions and self.definitions[reader].divides:
            return False
        reduction = self.reductions.get(reader)
        size = elements_of(reduction.source) if reduction is not None else None
        if size is None:
            if not is_tensor(reader):
                return False
            size = elements_of(reader)
        own = elements_of(node)
        return size != own and is_nonnegative(added(size, product((-1, own))))

    def _realise_before_mutation(self) -> None:
        """What is read of an input after it was stored to must be computed before."""
        order = {node: number for number, node in enumerate(self.nodes)}
        for copy in self.copies:
            source = self.root(copy.args[1])  # type: ignore[arg-type]
            own = self.root(copy.args[0])  # type: ignore[arg-type]
            for root in self.inlined_reads(source):
                earlier = self.mutated.get(root)
                if earlier is not None and (root is not own) and order[earlier] < order[copy]:
                    self.realised.add(source)

    def inlined_reads(self, node: Node) -> set[Node]:
        """The realised values that a value is computed from, formulas between followed."""
        return self._followed(node)[0]

    def computed_by(self, node: Node) -> set[Node]:
        """The value itself, and the formulas that are computed with it."""
        return self._followed(node)[1]

    def _followed(self, node: Node) -> tuple[set[Node], set[Node]]:
        reads: set[Node] = set()
        formulas: set[Node] = set()
        todo = [node]
        while todo:
            at = todo.pop()
            if at in reads or at in formulas:
                continue
            if at in self.realised and at is not node:
                reads.add(at)
            elif at is node or at in self.definitions:
                formulas.add(at)
                todo += self.operands(at)
        return reads, formulas
