"""`op-tools reproduce`: being built."""

from __future__ import annotations

from op_tools.runs import BadInput

__all__ = ["reproduce_command"]


def reproduce_command() -> None:
    """Being built."""
    raise BadInput("not built yet")
