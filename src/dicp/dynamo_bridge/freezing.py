"""Frozen weights: inputs that are the same tensors at every call become constants, which a backend may pack.

What is frozen is seen when the graph is called for the first time: AOTAutograd compiles with fake tensors. At each call the
weights are compared with what was frozen, by address and version; weights that were changed are frozen again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import GraphModule

from dicp.backend import Backend
from dicp.dynamo_bridge.compiled_graph import compile_graph
from dicp.dynamo_bridge.ordering import written_arguments
from dicp.errors import LOG, warn_once

__all__ = ["compile_frozen"]

Boxed = Callable[[list[Any]], list[Any]]
REFREEZES = 4


def compile_frozen(gm: GraphModule, backend: Backend, options: Mapping[str, Any]) -> Boxed:
    """As compile_graph, with the parameters and buffers that the graph does not write to as constants."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    static = list(metadata.static_input_indices or ()) if metadata is not None else []
    placeholders = gm.graph.find_nodes(op="placeholder")
    written = {target for node in gm.graph.nodes for target in written_arguments(node)}
    weights = [
        index
        for index in static
        if placeholders[index] not in written
        and isinstance(placeholders[index].meta.get("val"), torch.Tensor)
    ]
    if not weights:
        return compile_graph(gm, backend, options, "inference")
    return FrozenGraph(gm, weights, backend, options).as_function()


class FrozenGraph:
    """A graph that is compiled for the weights of its calls."""

    def __init__(
        self, gm: GraphModule, weights: Sequence[int], backend: Backend, options: Mapping[str, Any]
    ) -> None:
        self.gm, self.weights, self.backend, self.options = gm, tuple(weights), backend, options
        inputs = len(gm.graph.find_nodes(op="placeholder"))
        self.others = [index for index in range(inputs) if index not in set(weights)]
        self.compiled: Boxed | None = None
        self.frozen: list[Any] | None = None
        self.times = 0

    def as_function(self) -> Boxed:
        def call(arguments: list[Any]) -> list[Any]:
            given = [arguments[index] for index in self.weights]
            identity = [(weight.data_ptr(), _version(weight)) for weight in given]
            if identity != self.frozen:
                self._freeze(given, identity)
            assert self.compiled is not None
            if self.weights:
                given = [arguments[index] for index in self.others]
                arguments.clear()
                return self.compiled(given)
            return self.compiled(arguments)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def _freeze(self, given: Sequence[torch.Tensor], identity: Any) -> None:
        self.times += 1
        gm = GraphModule(self.gm, copy.deepcopy(self.gm.graph))
        if self.times > REFREEZES:
            warn_once(
                "refreeze",
                f"{self.backend.name}: frozen weights changed {REFREEZES} times; it is compiled without freezing now. Do not"
                " use freezing for weights that are trained.",
            )
            self.weights, self.frozen = (), []
        else:
            if self.times > 1:
                LOG.info("%s: frozen weights changed; they are frozen again", self.backend.name)
            placeholders = gm.graph.find_nodes(op="placeholder")
            for index, weight in zip(self.weights, given, strict=True):
                # A tensor of its own, as a weight may be freed by `weight.data = ...` while the program lives.
                placeholders[index].meta.update(constant=weight.detach(), lifted=True)
            self.frozen = identity
        self.compiled = compile_graph(gm, self.backend, self.options, "inference")


def _version(weight: torch.Tensor) -> int:
    return -1 if weight.is_inference() else weight._version
