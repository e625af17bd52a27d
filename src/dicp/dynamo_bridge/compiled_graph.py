"""Compiles one graph of ATen operators: rewrites, division in steps, the backend, and the function that runs it all."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch._guards import detect_fake_mode
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from dicp.backend import Backend
from dicp.dynamo_bridge.dump import dump
from dicp.dynamo_bridge.executor import CompiledStep, boxed, written_executor
from dicp.dynamo_bridge.extraction import extracted
from dicp.dynamo_bridge.partition import GraphStep, divide
from dicp.dynamo_bridge.record import GraphRecord, RecordedStep, begin_record
from dicp.dynamo_bridge.symbols import SymbolSources, free_symbols_of, is_number, lifted_sizes
from dicp.errors import LOG, CompileError, UnsupportedError, warn_once
from dicp.graph.text import graph_text
from dicp.passes.custom_operators import custom_operators_in_place
from dicp.passes.pipeline import run_passes
from dicp.settings import FALLBACK

__all__ = ["GraphKind", "compile_graph"]

GraphKind = Literal["inference", "forward", "backward"]
Units = list[CompiledStep | Sequence[Node]]


def compile_graph(
    gm: GraphModule, backend: Backend, options: Mapping[str, Any], kind: GraphKind
) -> Callable[[list[Any]], list[Any]]:
    """The function that AOTAutograd calls with the list of the graph's inputs."""
    original = copy.deepcopy(gm.graph)
    record = begin_record(gm, backend.name, kind)
    try:
        with unset_fake_temporarily(), torch.no_grad():
            return GraphCompilation(gm, backend, options, kind, record).run()
    except Exception as error:
        if record is not None:
            record.failure = f"{type(error).__name__}: {error}"
        if isinstance(error, UnsupportedError | CompileError) or FALLBACK.get() != "always":
            raise
        # A pass, or this package itself, has a defect: the graph that AOTAutograd made is right all the same.
        LOG.debug("compiling failed", exc_info=True)
        warn_once(
            f"graph:{backend.name}:{type(error).__name__}",
            f"{backend.name}: a graph could not be compiled and runs eagerly: {type(error).__name__}: {error}",
        )
        return boxed(GraphModule(gm, original).forward)
    finally:
        if record is not None:
            dump(record, GraphModule(gm, original))


class GraphCompilation:
    """One graph on its way through a backend."""

    def __init__(
        self,
        gm: GraphModule,
        backend: Backend,
        options: Mapping[str, Any],
        kind: GraphKind,
        record: GraphRecord | None,
    ) -> None:
        self.gm, self.backend, self.kind, self.record = gm, backend, kind, record
        self.meta = {"options": dict(options), "kind": kind}
        self.gm.meta.update(self.meta)
        self.refusals: dict[Node, str] = {}
        """Why a call runs eagerly."""
        self.symbols: SymbolSources

    def run(self) -> Callable[[list[Any]], list[Any]]:
        passes = (
            checks_typed,
            constants_lifted,
            custom_operators_in_place,
            dead_code_removed,
            *self.backend.passes(),
            self._sizes_lifted,
            dead_code_removed,
        )
        self.gm = run_passes(self.gm, passes, self.record.note_pass if self.record is not None else None)
        steps = divide(self.gm.graph, self._is_taken)
        if FALLBACK.get() == "never" and self.refusals:
            node, reason = next(iter(self.refusals.items()))
            raise UnsupportedError(
                f"{reason} ({node.format_node()}). DICP_FALLBACK=never forbids to run it eagerly."
            )
        units: Units = [self._unit(step) for step in steps]
        call, source = written_executor(
            self.gm, units, promised=self.kind != "inference", symbols=self.symbols.nodes
        )
        if self.record is not None:
            self.record.executor = source
        return call

    def _sizes_lifted(self, gm: GraphModule) -> GraphModule:
        self.symbols = lifted_sizes(gm)
        return gm

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

    def _unit(self, step: GraphStep) -> CompiledStep | Sequence[Node]:
        recorded = None if self.record is None else self.record.note_step(step.nodes, self.refusals)
        if not step.compiled:
            return step.nodes
        if not self.backend.worth_compiling(step.nodes):
            _note_reason(recorded, f"{self.backend.name} has nothing to gain by compiling it")
            return step.nodes
        part = extracted(step.nodes, self.symbols.nodes, self.meta)
        start = time.perf_counter()
        try:
            runner = self.backend.compile(part.graph)
        except UnsupportedError as error:
            if FALLBACK.get() == "never":
                raise
            LOG.info("%s: %d operators run eagerly: %s", self.backend.name, len(step.nodes), error)
            _note_reason(recorded, str(error))
            return step.nodes
        except Exception as error:
            if FALLBACK.get() != "always":
                raise
            self._warn(error, step)
            _note_reason(recorded, f"{type(error).__name__}: {error}")
            return step.nodes
        finally:
            if recorded is not None:
                recorded.seconds = time.perf_counter() - start
                recorded.kernels = dict(part.graph.meta.get("kernels", {}))
                recorded.artifacts = {
                    "graph.txt": graph_text(part.graph),
                    **self.backend.artifacts(part.graph),
                }
        if recorded is not None:
            recorded.compiled = True
        return CompiledStep(runner, part.inputs, part.outputs, self.backend.keeps_format)

    def _warn(self, error: Exception, step: GraphStep) -> None:
        LOG.debug("the compiler failed", exc_info=error)
        text = str(error) if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
        warn_once(
            f"compile:{self.backend.name}",
            f"{self.backend.name}: a part of {len(step.nodes)} operators could not be compiled and runs eagerly: {text}",
        )


def _note_reason(recorded: RecordedStep | None, reason: str) -> None:
    if recorded is not None:
        recorded.reasons = {node.name: reason for node in recorded.nodes}


def dead_code_removed(gm: GraphModule) -> GraphModule:
    """Without calls whose results nobody reads."""
    gm.graph.eliminate_dead_code()
    return gm


def checks_typed(gm: GraphModule) -> GraphModule:
    """Calls that give nothing, which only check something, get the type that tracing leaves out."""
    for node in gm.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns:
            node.meta.setdefault("val", None)
        elif node.target in (run_and_save_rng_state, run_with_rng_state) and "val" not in node.meta:
            node.meta["val"] = _drawn(node)
    return gm


def _drawn(node: Node) -> Any:
    """What an operator gives that is run with the state of a generator, as a checkpoint of activations has it."""
    saves = node.target is run_and_save_rng_state
    arguments: tuple[Any, ...] = node.args if saves else node.args[1:]
    called, *given = arguments
    args, kwargs = map_arg((tuple(given), node.kwargs), lambda n: n.meta["val"])
    mode, state = detect_fake_mode(args), torch.get_rng_state()
    with mode if mode is not None else nullcontext():
        result = called(*args, **kwargs)
        return (torch.empty(state.shape, dtype=state.dtype), result) if saves else result


def constants_lifted(gm: GraphModule) -> GraphModule:
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
    return gm
