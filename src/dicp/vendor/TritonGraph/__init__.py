"""The backend `tritongraph`: kernels in Triton for GPUs, and operators of ATen between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import GraphModule

__all__ = ["tritongraph"]


def tritongraph(gm: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """What `torch.compile(backend="tritongraph")` calls."""
    from dicp.dynamo_bridge.compile_fx import compile_fx
    from dicp.vendor.TritonGraph.installation import require_triton

    require_triton()
    return compile_fx(gm, inputs, "tritongraph", **options)
