"""The tools that run inside the script's process: one notes operators, one moves them, one judges them.

All of them work at ATen level only and print nothing: standard output belongs to the script's result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from op_tools.engine import Call
from op_tools.tool import Tool
from op_tools.tools.autocompare import OpAutoCompare
from op_tools.tools.fallback import OpFallback

__all__ = ["AtenCompare", "AtenFallback", "OperatorsSeen"]


class _Silent(Tool):
    uses_api = False

    def say(self, text: str) -> None:
        """Say nothing."""

    @staticmethod
    def _watched_types(text: str) -> frozenset[str] | None:
        # The device may be one that the script registers later, so whether there is one is not asked now: all but the CPU.
        return None if text.strip() in {"", "auto"} else Tool._watched_types(text)


class AtenFallback(_Silent, OpFallback):
    """OpFallback for names at ATen level."""


class OperatorsSeen(_Silent, OpFallback):
    """Notes which operators OpFallback could take. Each name is written at once: the script may crash in the operator."""

    executes = False
    wants_ties = False

    def __init__(self, file: str, **settings: Any) -> None:
        super().__init__(list=".*", disable_list="", **settings)
        self.file = Path(file)
        self.seen: set[str] = set()

    def before(self, call: Call) -> None:
        if call.name not in self.seen:
            self.seen.add(call.name)
            with self.file.open("a", encoding="utf-8") as names:
                names.write(f"{call.name}\n")


class AtenCompare(_Silent, OpAutoCompare):
    """OpAutoCompare for every operator at ATen level, so that its rows name kernels and not API calls."""

    aten_everywhere = True
