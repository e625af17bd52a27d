"""Typed graphs as AOTAutograd gives them to a backend."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from dicp.dynamo_bridge.decompositions import standard_decompositions


def captured(
    function: Callable[..., Any], *args: Any, dynamic: bool = False, backward: bool = False
) -> list[GraphModule]:
    """The graphs of one call, and of its gradients."""
    graphs: list[GraphModule] = []

    def keep(gm: GraphModule, inputs: Any) -> Any:
        graphs.append(GraphModule(gm, copy.deepcopy(gm.graph)))

        def run(given: list[Any]) -> Any:
            return gm.forward(*given)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    backend = aot_autograd(
        fw_compiler=keep, bw_compiler=keep, inference_compiler=keep, decompositions=dict(standard_decompositions()),
        keep_inference_input_mutations=True,
    )  # fmt: skip
    result = torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    if backward:
        result.sum().backward()
    return graphs
