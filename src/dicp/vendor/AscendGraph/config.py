"""The backend `ascendgraph`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from dicp.backend import Runner
from dicp.dynamo_bridge.graph import graph_key
from dicp.emitted.backend import EmittingBackend
from dicp.emitted.decompositions import emitted_decompositions
from dicp.emitted.program import EmittedProgram, MissingSdkError
from dicp.vendor.AscendGraph.codegen.ascend import AscendCodegen
from dicp.vendor.AscendGraph.conversion import AscendConversions
from dicp.vendor.AscendGraph.opset_convert import ascendgraph_opset_convert
from dicp.vendor.AscendGraph.program import AscendProgram
from dicp.vendor.AscendGraph.settings import PRECISION_CHECK

__all__ = ["BACKEND", "AscendBackend"]


class AscendBackend(EmittingBackend):
    """Maps operators of ATen to operators of GE, and emits them as JSON."""

    name = "ascendgraph"
    sdk = "the CANN toolkit with a loader of graphs"
    settings: ClassVar = (PRECISION_CHECK,)
    conversions = AscendConversions
    opset_transform = staticmethod(ascendgraph_opset_convert)
    codegen = AscendCodegen

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

    def emit(self, graph: GraphModule) -> EmittedProgram:
        key = graph_key(graph, self.name)
        return AscendProgram(AscendCodegen(self.opset_transform(graph), graph, "", key).json_text())

    def hand_over(self, program: EmittedProgram) -> Runner:
        raise MissingSdkError("no loader")


BACKEND = AscendBackend()
