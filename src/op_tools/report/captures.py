"""Which captured call a row is about."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from op_tools.report.rows import operator_of, with_whole_numbers
from op_tools.storage.errors import CaptureError
from op_tools.storage.files import safe_name
from op_tools.storage.log_reader import LogReader

__all__ = ["Captures"]


class Captures:
    """Which folder holds the tensors of a call: from the capture's rows, and from what OpAutoCompare saved."""

    def __init__(self, root: Path | None, logs: Sequence[Path]) -> None:
        self._root = root
        self._logs = logs
        self._folders: dict[tuple[Any, Any, str], str | None] | None = None
        self._saved: dict[tuple[str, str, str], dict[str, str]] = {}

    def _captured(self) -> dict[tuple[Any, Any, str], str | None]:
        """The folders by process, call and operator; read when first asked for."""
        if self._folders is None:
            self._folders = {}
            for path in self._logs:
                self._read(path, self._folders)
        return self._folders

    def _read(self, path: Path, folders: dict[tuple[Any, Any, str], str | None]) -> None:
        try:
            with LogReader(path) as reader:
                pid = reader.header.get("pid")
                for row in map(with_whole_numbers, reader.rows()):
                    key = (row.get("pid", pid), row.get("forward_id"), operator_of(row))
                    folder = str(row.get("folder") or "")
                    if folders.setdefault(key, folder) != folder:
                        # Several calls of one operator inside one call: which of them a row is about is not known.
                        folders[key] = None
        except (CaptureError, OSError):
            return  # who reads its rows says what is wrong

    def path(self, row: Mapping[str, Any]) -> str:
        """The folder of a row's call, or nothing."""
        compared = str(row.get("folder_a" if row.get("side") == "A" else "folder_b") or "")
        if compared:  # a comparison of two runs names the captures itself
            return compared
        operator = operator_of(row)
        folder = (
            row.get("folder")
            or self._captured().get((row.get("pid"), row.get("forward_id"), operator))
            or self._saved_folder(row, operator)
        )
        return f"{self._root}/{folder}" if folder and self._root is not None else ""

    def _saved_folder(self, row: Mapping[str, Any], operator: str) -> str:
        """`<op>/<process>/autocompare/<id>/<time>/device` of a failing comparison, if it was among those saved."""
        if self._root is None or row.get("verdict") != "fail":
            return ""
        key = (operator, str(row.get("pid")), str(row.get("rank")))
        if key not in self._saved:
            self._saved[key] = _saved_calls(self._root, *key)
        return self._saved[key].get(str(row.get("forward_id")), "")


def _saved_calls(root: Path, operator: str, pid: str, rank: str) -> dict[str, str]:
    """The folders of one process by the number of the call."""
    found: dict[str, str] = {}
    try:
        name = safe_name(operator)
        for process in sorted(os.listdir(root / name)):
            # `rank0_host_123` or `123`: processes of several hosts may have one number.
            head, _, number = process.rpartition("_")
            if number != pid or (head and not head.startswith(f"rank{rank}_")):
                continue
            calls = root / name / process / "autocompare"
            for call in sorted(os.listdir(calls)) if calls.is_dir() else ():
                times = sorted(os.listdir(calls / call))
                if times:
                    found[call] = f"{name}/{process}/autocompare/{call}/{times[0]}/device"
    except OSError:  # nothing was saved of this operator, or it was removed since
        return found
    return found
