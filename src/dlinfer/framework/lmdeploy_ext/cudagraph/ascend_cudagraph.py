"""The graph runner that LMDeploy asks for when `device_type` is ascend."""

from __future__ import annotations

from lmdeploy.pytorch.backends.graph_runner import GraphRunner

__all__ = ["AscendGraphRunner", "get_ascend_compatible_size"]


class AscendGraphRunner(GraphRunner):  # type: ignore[misc]
    """Runs the model eagerly."""


def get_ascend_compatible_size(n: int) -> int:
    """The batch size that a graph for `n` sequences is made for."""
    return n
