"""Backend `ascendgraph`: graphs in the JSON of GE, the compiler of Ascend chips, checked against its published prototypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

__all__ = ["ascendgraph"]


def ascendgraph(gm: GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """What `torch.compile(backend="ascendgraph")` calls."""
    from dicp.dynamo_bridge.compile_fx import compile_fx

    return compile_fx(gm, inputs, "ascendgraph", **kwargs)
