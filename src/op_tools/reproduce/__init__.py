"""One file for the maker of a chip: a captured call that is wrong, with its inputs, that needs nothing but torch."""

from __future__ import annotations

from op_tools.reproduce.finding import find_call, surest_calls
from op_tools.reproduce.write import NotWrong, ReproduceOptions, Reproduction, write, write_first

__all__ = [
    "NotWrong",
    "ReproduceOptions",
    "Reproduction",
    "find_call",
    "surest_calls",
    "write",
    "write_first",
]
