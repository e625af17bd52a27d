"""Compiles one graph of ATen operators: rewrites, division in steps, the backend, and the function that runs it all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from dicp.backend import Backend
from dicp.dynamo_bridge.executor import CompiledStep, boxed, written_executor
from dicp.dynamo_bridge.extraction import extracted
from dicp.dynamo_bridge.partition import GraphStep, divide
from dicp.dynamo_bridge.symbols import SymbolSources, free_symbols_of, is_number, lifted_sizes
from dicp.errors import LOG, CompileError, DicpError, UnsupportedError, warn_once
from dicp.settings import FALLBACK

__all__ = ["GraphKind", "compile_graph"]

GraphKind = Literal["inference", "forward", "backward"]
Units = list[CompiledStep | Sequence[Node]]


def compile_graph(
    gm: GraphModule, backend: Backend, options: Mapping[str, Any], kind: GraphKind
) -> Callable[[list[Any]], list[Any]]:
    """The function that AOTAutograd calls with the list of the graph's inputs."""
    original = GraphModule(gm, copy.deepcopy(gm.graph))
    try:
        with unset_fake_temporarily(), torch.no_grad():
            return GraphCompilation(gm, backend, options, kind).run()
    except Exception as error:
        if isinstance(error, DicpError) or FALLBACK.get() != "always":
            raise
        # A pass, or this package itself, has a defect: the graph that AOTAutograd made is right all the same.
        LOG.debug("compiling failed", exc_info=True)
        warn_once(
            f"graph:{backend.name}:{type(error).__name__}",
            f"{backend.name}: a graph could not be compiled and runs eagerly: {type(error).__name__}: {error}",
        )
        return boxed(original.forward)


class GraphCompilation:
    """One graph on its way through a backend."""

    def __init__(
        self, gm: GraphModule, backend: Backend, options: Mapping[str, Any], kind: GraphKind
    ) -> None:
        self.gm, self.backend, self.kind = gm, backend, kind
        self.meta = {"options": dict(options), "kind": kind}
        self.gm.meta.update(self.meta)
        self.refusals: dict[Node, str] = {}
        """Why a call runs eagerly."""
        self.symbols: SymbolSources

    def run(self) -> Callable[[list[Any]], list[Any]]:
        lift_constants(self.gm)
        self.gm.graph.eliminate_dead_code()
        for rewrite in self.backend.passes():
            self.gm = rewrite(self.gm)
        self.symbols = lifted_sizes(self.gm)
        self.gm.graph.eliminate_dead_code()
        steps = divide(self.gm.graph, self._is_taken)
        if FALLBACK.get() == "never" and self.refusals:
            node, reason = next(iter(self.refusals.items()))
            raise UnsupportedError(
                f"{reason} ({node.format_node()}). DICP_FALLBACK=never forbids to run it eagerly."
            )
        units: Units = [self._compiled(step) if step.compiled else step.nodes for step in steps]
        call, source = written_executor(
            self.gm, units, promised=self.kind != "inference", symbols=self.symbols.nodes
        )
        LOG.debug("%s", source)
        return call

    def _is_taken(self, node: Node) -> bool:
        if node.op != "call_function" or is_number(node):
            return False
        reason = self._refusal(node)
        if reason:
            self.refusals[node] = reason
        return not reason

    def _refusal(self, node: Node) -> str:
        values = node.meta.get("val")
        results = values if isinstance(values, list | tuple) else (values,)
        if not results or not all(value is None or isinstance(value, torch.Tensor) for value in results):
            return f"{node.target} does not give tensors"
        if any(argument.op == "get_attr" for argument in node.all_input_nodes):
            return f"{node.target} calls a graph"
        for argument in node.all_input_nodes:
            if is_number(argument) and isinstance(
                argument.meta["val"], float | torch.SymFloat | torch.SymBool
            ):
                return f"{node.target} has a number of type {type(argument.meta['val']).__name__} that is known at run time only"
        involved = [values, *(argument.meta.get("val") for argument in node.all_input_nodes)]
        unknown = [symbol for symbol in free_symbols_of(involved) if symbol not in self.symbols.nodes]
        if unknown:
            return f"{node.target} depends on {unknown[0]}, which no input says"
        return "" if self.backend.supports(node) else self.backend.refusal(node)

    def _compiled(self, step: GraphStep) -> CompiledStep | Sequence[Node]:
        if not self.backend.worth_compiling(step.nodes):
            return step.nodes
        part = extracted(step.nodes, self.symbols.nodes, self.meta)
        try:
            runner = self.backend.compile(part.graph)
        except UnsupportedError as error:
            if FALLBACK.get() == "never":
                raise
            LOG.info("%s: %d operators run eagerly: %s", self.backend.name, len(step.nodes), error)
            return step.nodes
        except Exception as error:
            if FALLBACK.get() != "always":
                raise
            self._warn(error, step)
            return step.nodes
        return CompiledStep(runner, part.inputs, part.outputs, self.backend.keeps_format)

    def _warn(self, error: Exception, step: GraphStep) -> None:
        LOG.debug("the compiler failed", exc_info=error)
        text = str(error) if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
        warn_once(
            f"compile:{self.backend.name}",
            f"{self.backend.name}: a part of {len(step.nodes)} operators could not be compiled and runs eagerly: {text}",
        )


def lift_constants(gm: GraphModule) -> None:
    """Tensors that the program holds become inputs, marked `constant` and `lifted`, which the executor fills in."""
    graph = gm.graph
    placeholders = graph.find_nodes(op="placeholder")
    first = next(iter(graph.nodes))
    lifted: dict[str, Node] = {}
    for node in graph.find_nodes(op="get_attr"):
        value: Any = gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            continue
        if str(node.target) not in lifted:
            with graph.inserting_after(placeholders[-1]) if placeholders else graph.inserting_before(first):
                placeholder = graph.placeholder(node.name + "_constant")
            placeholder.meta = {**node.meta, "constant": value, "lifted": True}
            placeholder.meta.setdefault("val", value)
            placeholders.append(placeholder)
            lifted[str(node.target)] = placeholder
        node.replace_all_uses_with(lifted[str(node.target)])
        graph.erase_node(node)
