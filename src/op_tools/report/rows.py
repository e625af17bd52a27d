"""Where a row belongs: its operator, its source line, its capture, and the command that makes a file of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from op_tools.runs import Run
from op_tools.storage.files import safe_name

__all__ = [
    "Captures", "operator_of", "reproduce_line", "short_site", "split_name", "with_whole_numbers",
]  # fmt: skip

_WHOLE_NUMBERS = ("pid", "rank", "step", "forward_id", "world_size")


def with_whole_numbers(row: dict[str, Any]) -> dict[str, Any]:
    """The same row. Logs may come from elsewhere: what should count and does not is taken out."""
    for name in _WHOLE_NUMBERS:
        value = row.get(name)
        if value is not None and not isinstance(value, int):
            row[name] = None
    return row


def split_name(name: Any) -> tuple[str, str]:
    """`torch.add output[0]` -> operator and value. Names of calls have no blank."""
    operator, _, value = str(name or "").partition(" ")
    return operator, value


def operator_of(row: Mapping[str, Any]) -> str:
    return split_name(row.get("name"))[0]


def short_site(call_site: str) -> str:
    """`/a/b/model.py:64 forward: y = f(x)` -> `model.py:64`."""
    return call_site.split(" ", 1)[0].rpartition("/")[2]


def reproduce_line(capture: str) -> str:
    """The command that writes a captured call as one Python file."""
    return f"op-tools reproduce {shlex.quote(capture)}"


class Captures:
    """Which folder holds the tensors of a call: from the capture's rows, and from what OpAutoCompare saved."""

    def __init__(self, run: Run) -> None:
        self._root = run.captures
        self._folders: dict[tuple[Any, Any, str], str | None] = {}
        self._saved: dict[str, dict[tuple[str, str], str]] = {}
        for row in map(with_whole_numbers, run.rows("capture")):
            key = (row.get("pid"), row.get("forward_id"), operator_of(row))
            folder = str(row.get("folder") or "")
            if self._folders.setdefault(key, folder) != folder:
                # Several calls of one operator inside one call: which of them a row is about is not known.
                self._folders[key] = None

    def path(self, row: Mapping[str, Any]) -> str:
        """The folder of a row's call, or nothing."""
        compared = str(row.get("folder_a" if row.get("side") == "A" else "folder_b") or "")
        if compared:  # a comparison of two runs names the captures itself
            return compared
        operator = operator_of(row)
        folder = (
            row.get("folder")
            or self._folders.get((row.get("pid"), row.get("forward_id"), operator))
            or self._saved_folder(row, operator)
        )
        return f"{self._root}/{folder}" if folder and self._root is not None else ""

    def _saved_folder(self, row: Mapping[str, Any], operator: str) -> str:
        """`<op>/<process>/autocompare/<id>/<time>/device` of a failing comparison, if it was among those saved."""
        if self._root is None or row.get("verdict") != "fail":
            return ""
        if operator not in self._saved:
            self._saved[operator] = _saved_calls(self._root, operator)
        return self._saved[operator].get((str(row.get("pid")), str(row.get("forward_id"))), "")


def _saved_calls(root: Path, operator: str) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    try:
        name = safe_name(operator)
        for process in sorted(os.listdir(root / name)):
            calls = root / name / process / "autocompare"
            for call in sorted(os.listdir(calls)) if calls.is_dir() else ():
                times = sorted(os.listdir(calls / call))
                if times:
                    folder = f"{name}/{process}/autocompare/{call}/{times[0]}/device"
                    # `rank0_host_123` or `123`: the process's number comes last.
                    found[(process.rpartition("_")[2], call)] = folder
    except OSError:  # nothing was saved of this operator, or it was removed since
        return found
    return found
