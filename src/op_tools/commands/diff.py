"""`op-tools diff`: being built."""

from __future__ import annotations

from op_tools.runs import BadInput

__all__ = ["diff_command"]


def diff_command() -> None:
    """Being built."""
    raise BadInput("not built yet")
