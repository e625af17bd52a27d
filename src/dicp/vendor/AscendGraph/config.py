"""The backend `ascendgraph`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from dicp.backend import Runner
from dicp.dynamo_bridge.graph import graph_key
from dicp.emitted.backend import EmittingBackend
from dicp.emitted.decompositions import emitted_decompositions
from dicp.emitted.program import EmittedProgram, MissingSdkError
from dicp.passes.pipeline import run_passes
from dicp.vendor.AscendGraph.codegen.graph_json import graph_json
from dicp.vendor.AscendGraph.conversion import AscendConversions
from dicp.vendor.AscendGraph.program import AscendProgram
from dicp.vendor.AscendGraph.settings import PRECISION_CHECK

__all__ = ["BACKEND", "AscendBackend"]


class AscendBackend(EmittingBackend):
    """Maps operators of ATen to operators of GE, and emits them as JSON."""

    name = "ascendgraph"
    sdk = "the CANN toolkit with a loader of graphs"
    settings: ClassVar = (PRECISION_CHECK,)
    conversions = AscendConversions

    def decompositions(self) -> Mapping[torch._ops.OperatorBase, Callable[..., Any]]:
        """What has a conversion stays whole."""
        found = {**super().decompositions(), **emitted_decompositions()}
        return {
            operator: rule for operator, rule in found.items() if self.conversions.conversion_of(operator) is None
        }  # fmt: skip

    def supports(self, node: Node) -> bool:
        return not self.conversions.refusal(node)

    def refusal(self, node: Node) -> str:
        return f"{self.name}: {self.conversions.refusal(node)}"

    def checks_precision(self) -> bool:
        return bool(PRECISION_CHECK.get())

    def opset_transform(self, gm: GraphModule) -> GraphModule:
        """The graph in operators of GE."""

        def conversion(gm: GraphModule) -> GraphModule:
            return self.conversions(gm).transform()

        def dead_code_removed(gm: GraphModule) -> GraphModule:
            gm.graph.eliminate_dead_code()
            return gm

        return run_passes(gm, (conversion, dead_code_removed))

    def emit(self, graph: GraphModule) -> EmittedProgram:
        key = graph_key(graph, self.name)
        emitted = graph_json(self.opset_transform(graph), f"graph_{key}")
        return AscendProgram(json.dumps(emitted, indent=1, allow_nan=False))

    def hand_over(self, program: EmittedProgram) -> Runner:
        raise MissingSdkError("no loader")


BACKEND = AscendBackend()
