"""What can go wrong with graphs, said so that the reader knows what to change."""

from __future__ import annotations


class GraphError(RuntimeError):
    """A graph cannot be captured, or its backend cannot be used; says why and what to do."""


class UnknownBackendError(GraphError, ValueError):
    """No graph backend has this name."""
