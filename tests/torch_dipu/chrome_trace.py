"""Reads a Chrome trace that torch.profiler wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["DEVICE_WORK", "Trace"]

Event = dict[str, Any]
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


class Trace:
    def __init__(self, profile: Any, folder: Path) -> None:
        path = folder / "trace.json"
        profile.export_chrome_trace(str(path))
        self.events: list[Event] = json.loads(path.read_text())["traceEvents"]

    def of(self, *categories: str) -> list[Event]:
        """Events with a duration, by when they begin."""
        found = [e for e in self.events if e.get("ph") == "X" and e.get("cat") in categories]
        return sorted(found, key=lambda e: e["ts"])

    def work(self) -> list[Event]:
        return self.of(*DEVICE_WORK)

    def operators_by_id(self) -> dict[int, Event]:
        return {e["args"]["External id"]: e for e in self.of("cpu_op") if "External id" in e["args"]}

    def flows(self) -> tuple[dict[int, Event], dict[int, Event]]:
        """Where the arrows from launch to work begin, and where they end, by id."""
        arrows = [e for e in self.events if e.get("cat") == "ac2g"]
        begins = {e["id"]: e for e in arrows if e["ph"] == "s"}
        ends = {e["id"]: e for e in arrows if e["ph"] == "f"}
        assert len(begins) + len(ends) == len(arrows), "an arrow has one begin and one end"
        return begins, ends
