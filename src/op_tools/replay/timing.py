"""Measures one call on a device: by the device's own events, or by waiting for it before and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["Stopwatch"]

Result = TypeVar("Result")


class Stopwatch:
    """`measure` runs a function; `milliseconds` is what the last one took."""

    def __init__(self, device: torch.device, *, sync: bool) -> None:
        self.device = device
        self.milliseconds = 0.0
        self._on_host = device.type == "cpu"
        self._events = None if sync or self._on_host else self._make_events()

    def _make_events(self) -> tuple[torch.Event, torch.Event] | None:
        try:
            first, second = (torch.Event(self.device, enable_timing=True) for _ in range(2))
            first.record()
            second.record()
            second.synchronize()
            first.elapsed_time(second)
        except (RuntimeError, NotImplementedError, TypeError):  # a device without timing events
            return None
        return first, second

    def measure(self, function: Callable[[], Result]) -> Result:
        self._wait()
        if self._events is None:
            start = time.perf_counter()
            result = function()
            self._wait()
            self.milliseconds = (time.perf_counter() - start) * 1e3
            return result
        first, second = self._events
        first.record()
        result = function()
        second.record()
        second.synchronize()
        self.milliseconds = float(first.elapsed_time(second))
        return result

    def _wait(self) -> None:
        if not self._on_host:
            torch.accelerator.synchronize(self.device)
