"""Ranges and marks of `torch.cuda.nvtx`, without the tool that would display them.

Training scripts are full of `nvtx.range_push("forward")`. Marks carry no result, so a device without that
tool accepts them and keeps only what the caller can observe: the depth of nesting.
"""

from __future__ import annotations

import itertools
import threading

__all__ = ["SilentMarkers"]


class SilentMarkers:
    """Takes the place of torch's binding to the marker library; the method names are that binding's."""

    def __init__(self) -> None:
        self._depth = threading.local()
        self._handles = itertools.count(1)

    def rangePushA(self, message: str) -> int:
        depth: int = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        return depth

    def rangePop(self) -> int:
        depth: int = max(getattr(self._depth, "value", 0) - 1, -1)
        self._depth.value = max(depth, 0)
        return depth

    def rangeStartA(self, message: str) -> int:
        return next(self._handles)

    def rangeEnd(self, handle: int) -> None:
        return None

    def markA(self, message: str) -> None:
        return None

    def deviceRangeStart(self, message: str, stream: int) -> object:
        return object()

    def deviceRangeEnd(self, handle: object, stream: int) -> None:
        return None
