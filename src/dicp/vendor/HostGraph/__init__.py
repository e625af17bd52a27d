"""The backend `hostgraph`: C++ for the processor, compiled by the system's compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import GraphModule

__all__ = ["hostgraph"]


def hostgraph(gm: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """What `torch.compile(backend="hostgraph")` calls."""
    from dicp.dynamo_bridge.compile_fx import compile_fx

    return compile_fx(gm, inputs, "hostgraph", **options)
