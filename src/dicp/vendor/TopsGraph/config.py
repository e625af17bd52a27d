"""The backend `topsgraph`: operators of ATen become a C++ program over the builder of Enflame's graph compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dicp.backend import Runner
from dicp.emitted.backend import EmittingBackend
from dicp.emitted.decompositions import emitted_decompositions
from dicp.emitted.program import EmittedProgram, MissingSdkError
from dicp.vendor.TopsGraph.codegen.enflame import EnflameCodegen
from dicp.vendor.TopsGraph.codegen.program import TopsProgram
from dicp.vendor.TopsGraph.conversion import TopsConversions
from dicp.vendor.TopsGraph.opset_transform import topsgraph_opset_transform

__all__ = ["BACKEND", "TopsBackend"]


class TopsBackend(EmittingBackend):
    """Emits, checks, hands over."""

    name = "topsgraph"
    sdk = "the TopsRider SDK"
    opset_transform = staticmethod(topsgraph_opset_transform)
    codegen = EnflameCodegen

    def decompositions(self) -> Mapping[torch._ops.OperatorBase, Callable[..., Any]]:
        """The standard ones, without those of operators that the builder has."""
        found = {**super().decompositions(), **emitted_decompositions()}
        return {
            target: rule for target, rule in found.items() if TopsConversions.conversion_of(target) is None
        }

    def supports(self, node: Node) -> bool:
        """Whether the conversion of this very call works."""
        return not TopsConversions.refusal(node)

    def refusal(self, node: Node) -> str:
        """Why not."""
        return f"{self.name}: {TopsConversions.refusal(node)}"

    def emit(self, graph: GraphModule) -> EmittedProgram:
        """The program of a graph."""
        return TopsProgram(graph)

    def hand_over(self, program: EmittedProgram) -> Runner:
        """To the vendor's compiler."""
        raise MissingSdkError("handing over is not part of this version")


BACKEND = TopsBackend()
