"""What functions for nests have in common: loops over rows and columns, what they begin with, how much is worth a thread."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dicp.loops.ir import Loop
from dicp.vendor.HostGraph.expressions import literal_text, size_text

__all__ = ["GRAIN", "loop_head", "neutral", "odometer"]

GRAIN = 16384
"""Elements that are worth a thread."""


def loop_head(loop: Loop, begin: str = "", end: str = "") -> str:
    v = loop.variable
    return f"for (i64 {v} = {begin or size_text(loop.begin)}; {v} < {end or size_text(loop.end)}; ++{v})"


def odometer(rows: Sequence[Loop], number: str = "begin") -> tuple[list[str], list[str]]:
    """The variables of the loops at a row of that number, and how they move on."""
    declared, rest = [], f"({number})"
    for position, loop in reversed(list(enumerate(rows))):
        v, count, first = loop.variable, size_text(loop.count), size_text(loop.begin)
        if position:
            declared.append(f"i64 {v} = {first} + {rest} % ({count});")
            rest = f"({rest} / ({count}))"
        else:
            declared.append(f"i64 {v} = {first} + {rest};")
    step = ""
    for loop in rows:
        v = loop.variable
        more = (
            f" if ({v} == {size_text(loop.end)}) {{ {v} = {size_text(loop.begin)}; {step} }}" if step else ""
        )
        step = f"++{v};{more}"
    return declared, [step] if step else []


def neutral(kind: str, dtype: torch.dtype) -> str:
    """The extreme of no elements."""
    if dtype.is_floating_point:
        return literal_text(float("-inf") if kind == "max" else float("inf"), dtype)
    if dtype is torch.bool:
        return literal_text(kind == "min", dtype)
    limits = torch.iinfo(dtype)
    return literal_text(limits.min if kind == "max" else limits.max, dtype)
