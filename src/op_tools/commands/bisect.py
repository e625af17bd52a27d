"""`op-tools bisect`: being built."""

from __future__ import annotations

from op_tools.runs import BadInput

__all__ = ["bisect_command"]


def bisect_command() -> None:
    """Being built."""
    raise BadInput("not built yet")
