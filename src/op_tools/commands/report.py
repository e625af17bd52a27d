"""`op-tools report`: being built."""

from __future__ import annotations

from op_tools.runs import BadInput

__all__ = ["report_command"]


def report_command() -> None:
    """Being built."""
    raise BadInput("not built yet")
