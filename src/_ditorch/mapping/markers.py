"""Ranges and marks of `torch.cuda.nvtx`, shown by torch's own profiler.

Training scripts are full of `nvtx.range_push("forward")`. The tool that displays these is cuda's own; here a
range becomes a `record_function` of `torch.profiler` while one is running, and otherwise only counts the
depth of nesting, which is all that a caller can observe.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import AbstractContextManager
from typing import Any

import torch

__all__ = ["ProfilerMarkers"]

_Range = AbstractContextManager[Any] | None


class ProfilerMarkers:
    """Takes the place of torch's binding to the marker library; the method names are that binding's."""

    def __init__(self) -> None:
        self._nested = threading.local()
        self._handles = itertools.count(1)
        self._open: dict[Any, _Range] = {}

    def rangePushA(self, message: str) -> int:
        ranges = self._ranges()
        ranges.append(_begin(message))
        return len(ranges) - 1

    def rangePop(self) -> int:
        ranges = self._ranges()
        if not ranges:
            return -1
        _end(ranges.pop())
        return len(ranges)

    def rangeStartA(self, message: str) -> int:
        handle = next(self._handles)
        self._open[handle] = _begin(message)
        return handle

    def rangeEnd(self, handle: int) -> None:
        _end(self._open.pop(handle, None))

    def markA(self, message: str) -> None:
        _end(_begin(message))

    def deviceRangeStart(self, message: str, stream: int) -> int:
        return self.rangeStartA(message)

    def deviceRangeEnd(self, handle: int, stream: int) -> None:
        self.rangeEnd(handle)

    def _ranges(self) -> list[_Range]:
        """This thread's open ranges, the outermost first."""
        found: list[_Range] | None = getattr(self._nested, "ranges", None)
        if found is None:
            found = self._nested.ranges = []
        return found


def _begin(message: str) -> _Range:
    if not torch.autograd._profiler_enabled():  # private; the public classes ask it too
        return None
    shown = torch.profiler.record_function(message)
    shown.__enter__()
    return shown


def _end(shown: _Range) -> None:
    if shown is not None:
        shown.__exit__(None, None, None)
