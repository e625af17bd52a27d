"""Backend `topsgraph`: C++ for the builder of Enflame's graph compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

__all__ = ["topsgraph"]


def topsgraph(gm: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """What `torch.compile(backend="topsgraph")` calls."""
    from dicp.dynamo_bridge.compile_fx import compile_fx

    return compile_fx(gm, inputs, "topsgraph", **options)
