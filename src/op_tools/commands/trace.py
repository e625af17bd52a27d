"""`op-tools trace`: being built."""

from __future__ import annotations

from op_tools.runs import BadInput

__all__ = ["trace_command"]


def trace_command() -> None:
    """Being built."""
    raise BadInput("not built yet")
