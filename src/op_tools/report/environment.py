"""Where a run came from: processes, devices, versions, settings, and whether its logs are whole."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from op_tools.report.tallies import section_of
from op_tools.runs import DERIVED_LOGS, Run
from op_tools.storage.log import LogContents

__all__ = ["Environment"]

_DEVICE = re.compile(r"@([a-z_]+(?::\d+)?)")
# Texts of arguments that are looked at for devices; the first ones name all that a run uses.
_MOST_LOOKED_AT = 2000


class Environment:
    """Gathers what logs and rows say about where they were made."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._logs: list[dict[str, Any]] = []
        self._ranks: set[Any] = set()
        self._hosts: set[str] = set()
        self._devices: set[str] = set()
        self._torch: set[str] = set()
        self._settings: dict[str, Any] = {}
        self._world_size = 1
        self._looked_at = 0
        self._seen: set[str] = set()

    def add_log(self, tool: str, path: Path, contents: LogContents) -> None:
        """Note a log: whose it is, how many rows, how much of it is torn."""
        header = contents.header
        self._world_size = max(self._world_size, int(header.get("world_size") or 1))
        self._ranks.add((header.get("rank"), header.get("pid")))
        self._hosts |= {str(header["host"])} if header.get("host") else set()
        self._torch |= {str(header["torch"])} if header.get("torch") else set()
        if isinstance(header.get("settings"), dict):
            self._settings[tool] = header["settings"]
        self._logs.append(
            {
                "tool": tool, "file": path.name, "rows": len(contents.rows), "dropped": contents.dropped_bytes,
                "rank": header.get("rank"), "pid": header.get("pid"), "host": str(header.get("host") or ""),
                "started": str(header.get("started") or ""),
            }
        )  # fmt: skip

    def see(self, row: Mapping[str, Any]) -> None:
        """Take the devices from the texts of a row's arguments."""
        text = row.get("input")
        if isinstance(text, str) and self._looked_at < _MOST_LOOKED_AT and text not in self._seen:
            self._looked_at += 1
            self._seen.add(text)
            self._devices.update(_DEVICE.findall(text))

    def as_plain(self) -> dict[str, Any]:
        self._ask_captures()
        # What compares or replays captures afterwards is not the program.
        processes = {log["pid"] for log in self._logs if log["tool"] not in DERIVED_LOGS}
        return {
            "torch": sorted(self._torch), "devices": sorted(self._devices), "hosts": sorted(self._hosts),
            "ranks": len({rank for rank, _ in self._ranks}), "world_size": self._world_size,
            "processes": len(processes), "settings": self._settings, "logs": self._logs,
            "timed_with": sorted(self._timed_with()),
            "dropped": sum(log["dropped"] for log in self._logs), "captures": self._run.captures is not None,
            "python": platform.python_version(),
        }  # fmt: skip

    def _timed_with(self) -> set[str]:
        """Tools that were on in the processes whose times were measured: they slow operators down."""
        timed = {log["pid"] for log in self._logs if section_of(log["tool"]) == "time"}
        others = {log["tool"] for log in self._logs if log["pid"] in timed}
        return {tool for tool in others if section_of(tool) not in ("time", "memory")}

    def _ask_captures(self) -> None:
        """Captures say which torch and device made them."""
        if self._run.captures is None:
            return
        for path in islice(self._run.captures.rglob("input.pth.json"), 3):
            try:
                header = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue
            if isinstance(header, dict):
                self._torch |= {str(header["torch"])} if header.get("torch") else set()
                self._devices |= {str(header["device"])} if header.get("device") else set()
