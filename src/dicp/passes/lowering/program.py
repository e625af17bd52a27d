"""From a graph to a program of the loop IR."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sympy
import torch
from torch.fx import GraphModule, Node

from dicp.errors import UnsupportedError
from dicp.loops.index import Size, size_of
from dicp.loops.ir import (
    BufferKind,
    KernelArguments,
    KernelLaunch,
    LoopBuffer,
    LoopKernel,
    LoopProgram,
    ProgramStep,
)
from dicp.passes.lowering.calls import CallWriter, is_product
from dicp.passes.lowering.definitions import NotDivided
from dicp.passes.lowering.fusion import FusedKernel, fused
from dicp.passes.lowering.realise import GraphValues
from dicp.passes.lowering.values import dtype_of, elements_of, is_tensor, memory_extent, shape_of, strides_of
from dicp.passes.lowering.writer import write_kernel

__all__ = ["lower"]


def lower(gm: GraphModule) -> LoopProgram:
    """The program of a graph as `dicp.backend` describes it. The graph is not changed: only its `meta["kernels"]` says what each
    node is computed in, for the drawing.
    """
    called: set[Node] = set()
    while True:
        try:
            writer = _ProgramWriter(gm, called)
            program = writer.write()
            gm.meta["kernels"] = writer.computed_in
            return program
        except NotDivided as error:
            if error.node is None or error.node in called:
                raise
            called.add(error.node)


class _ProgramWriter:
    def __init__(self, gm: GraphModule, called: Collection[Node]) -> None:
        self.graph = gm.graph
        self.values = GraphValues(gm.graph, called)
        self.buffers: dict[str, LoopBuffer] = {}
        self.names: dict[Node, str] = {}
        self.kernels: dict[LoopKernel, int] = {}
        self.symbols: dict[str, sympy.Symbol] = {}
        self.positions: dict[str, int] = {}
        self.computed_in: dict[str, str] = {}
        """By the name of a node."""
        self.outputs = _outputs(gm)
        self.returned = {self.values.root(node) for node in self.outputs}
        self._inputs()

    def _inputs(self) -> None:
        for position, node in enumerate(self.graph.find_nodes(op="placeholder")):
            if is_tensor(node):
                kind: BufferKind = "constant" if "constant" in node.meta else "input"
                self._new(node, kind, position, node in self.values.mutated)
                continue
            expression = size_of(node.meta["val"]) if isinstance(node.meta["val"], torch.SymInt) else 0
            if isinstance(expression, sympy.Symbol):
                self.symbols[expression.name] = expression
                self.positions[expression.name] = position

    def _new(self, node: Node, kind: BufferKind, position: int = -1, written: bool = False) -> str:
        name = self.names[node] = f"b{len(self.names)}"
        sizes, strides = shape_of(node), strides_of(node)
        self.buffers[name] = LoopBuffer(
            name, kind, dtype_of(node), sizes, strides, memory_extent(node), position, written
        )
        return name

    def buffer(self, root: Node) -> str:
        """The buffer of a value's memory."""
        known = self.names.get(root)
        if known is not None:
            return known
        own = root in self.values.definitions or root in self.values.reductions or is_product(root)
        return self._new(root, ("output" if root in self.returned else "temporary") if own else "result")

    def write(self) -> LoopProgram:
        steps = fused(self.values)
        stored = self._stored(steps)
        calls = CallWriter(self.values.root, self.buffer)
        written: list[ProgramStep] = []
        for step in steps:
            if not isinstance(step, FusedKernel):
                written.append(calls.step(step.node))
                self.computed_in[step.node.name] = f"step {len(written)}, a call"
            elif any(statement.total != 0 for statement in step.statements) or any(
                s.kind in ("reduce", "scan") and elements_of(s.node) != 0 for s in step.statements
            ):
                launch = self._launch(step, stored)
                written.append(launch)
                for statement in step.statements:
                    for node in self.values.computed_by(statement.node):
                        self.computed_in.setdefault(node.name, f"step {len(written)}, kernel {launch.kernel}")
        outputs = tuple(map(calls.view, self.outputs))
        return LoopProgram(self.buffers, tuple(self.kernels), tuple(written), outputs, self.positions)

    def _stored(self, steps: Sequence[object]) -> set[Node]:
        """What is read outside of the kernel that makes it."""
        stored = set(self.returned)
        for step in steps:
            if isinstance(step, FusedKernel):
                stored |= step.reads
            else:
                stored |= set(self.values.operands(step.node))  # type: ignore[attr-defined]
        return stored

    def _launch(self, step: FusedKernel, stored: set[Node]) -> KernelLaunch:
        written = write_kernel(step, self.values, stored)
        number = self.kernels.setdefault(written.kernel, len(self.kernels))
        unknown = [s for s in written.kernel.sizes if s not in self.symbols]
        if unknown:
            raise UnsupportedError(f"no input of the graph gives the size {unknown[0]}")
        sizes: tuple[Size, ...] = tuple(self.symbols[s] for s in written.kernel.sizes)
        return KernelLaunch(number, (KernelArguments(tuple(map(self.buffer, written.buffers)), sizes),))


def _outputs(gm: GraphModule) -> list[Node]:
    given = gm.graph.output_node().args[0]
    assert isinstance(given, (list, tuple))
    for node in given:
        if not is_tensor(node):
            raise UnsupportedError(f"the output {node} is no tensor")
    return list(given)  # type: ignore[arg-type]
