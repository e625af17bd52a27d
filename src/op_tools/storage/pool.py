"""Host memory that snapshots are copied into, used again and again.

Fresh memory costs a page fault every 4 KiB, which makes the first copy into it several times slower than the
copy itself. Buffers therefore come back here once their bytes are on disk (or turned out to be known already),
and the one returned last, which is still in the cache, is handed out first.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from typing import Any

import torch

from op_tools.storage.disk import DIRECT_FROM

# From the size on that is written directly, the memory is mapped: it starts on a page, and may use huge ones.
MAPPED_FROM = DIRECT_FROM
SMALLEST = 512
HUGE_PAGE = 2 << 20
MOST_VIEWS = 8


class Buffer:
    """`capacity` bytes of host memory, seen as a memoryview and as a 1-D tensor of any dtype."""

    __slots__ = ("bytes", "capacity", "memory", "views")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # A tensor made in inference mode could not be written to outside of it, and buffers outlive the mode.
        with torch.inference_mode(False):
            if capacity < MAPPED_FROM:
                self.bytes = torch.empty(capacity, dtype=torch.uint8, device="cpu")
                self.memory = memoryview(self.bytes.numpy().data)
            else:
                # Private: the default of mmap is shared memory, which a forked child would write into.
                mapping = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                if capacity >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
                    mapping.madvise(mmap.MADV_HUGEPAGE)
                self.bytes = torch.frombuffer(mapping, dtype=torch.uint8)
                self.memory = memoryview(mapping)
        self.views: dict[Any, torch.Tensor] = {}

    def seen_as(self, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """A tensor over the first bytes. The steps of a training repeat themselves, so the last few are kept."""
        key = (dtype, shape, stride)
        view = self.views.get(key)
        if view is None:
            if len(self.views) >= MOST_VIEWS:
                self.views.clear()
            with torch.inference_mode(False):
                view = self.views[key] = self.bytes.view(dtype).as_strided(shape, stride)
        return view


def capacity_for(nbytes: int) -> int:
    """The size class: eight steps to the next power of two, so that at most an eighth is wasted."""
    if nbytes <= SMALLEST:
        return SMALLEST
    step = 1 << max((nbytes - 1).bit_length() - 4, 9)
    return (nbytes + step - 1) // step * step


class Pool:
    """Free buffers by size class; keeps at most `idle_bytes` of them. Safe to use from several threads."""

    def __init__(self, idle_bytes: int) -> None:
        self.idle_limit = idle_bytes
        self.idle_bytes = 0
        self._free: dict[int, list[Buffer]] = {}
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Buffer:
        capacity = capacity_for(nbytes)
        free = self._free.get(capacity)
        if free:
            with self._lock:
                if free:
                    self.idle_bytes -= capacity
                    return free.pop()
        return Buffer(capacity)

    def give(self, buffer: Buffer) -> None:
        with self._lock:
            if self.idle_bytes + buffer.capacity > self.idle_limit:
                self._make_room(buffer.capacity)
            if self.idle_bytes + buffer.capacity <= self.idle_limit:
                self.idle_bytes += buffer.capacity
                self._free.setdefault(buffer.capacity, []).append(buffer)

    def _make_room(self, nbytes: int) -> None:
        """Free buffers of other sizes, the least recently first filled class first: sizes change between models."""
        for capacity in list(self._free):
            free = self._free[capacity]
            while free and self.idle_bytes + nbytes > self.idle_limit:
                free.pop(0)
                self.idle_bytes -= capacity
            if not free:
                del self._free[capacity]
            if self.idle_bytes + nbytes <= self.idle_limit:
                return

    def clear(self) -> None:
        with self._lock:
            self._free.clear()
            self.idle_bytes = 0

    def after_fork(self) -> None:
        """In a child: the lock may have been held by a thread that does not exist here."""
        self._lock = threading.Lock()
        self._free = {}
        self.idle_bytes = 0
