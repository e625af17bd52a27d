"""`op-tools check`: being built."""

from __future__ import annotations

from op_tools.runs import BadInput

__all__ = ["check_command"]


def check_command() -> None:
    """Being built."""
    raise BadInput("not built yet")
