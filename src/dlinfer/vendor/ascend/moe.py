"""How LMDeploy stores experts when the vendor of kernels is called 'ascend'. The names are fixed by LMDeploy."""

from __future__ import annotations

from typing import Any

__all__ = ["build_chunked_moe_storage_layout"]


def build_chunked_moe_storage_layout(num_experts: int) -> tuple[int, Any]:
    """How many experts are stored, and in which chunks: all of them, one after the other, as `fused_moe` reads them."""
    return num_experts, None
