"""What runs a generated module: errors of indices, the current device, and CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

__all__ = ["IndexErrors", "TritonProgram", "strided_view"]

Run = Callable[[list[Any]], list[Tensor]]


def strided_view(
    buffer: Tensor, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], offset: int
) -> Tensor:
    """Part of a buffer, as a view; `offset` in elements of the dtype."""
    if dtype is not buffer.dtype:
        extent = 1 + sum((n - 1) * s for n, s in zip(buffer.shape, buffer.stride(), strict=True))
        if 0 in buffer.shape:
            return buffer.new_empty(tuple(sizes), dtype=dtype)
        buffer = buffer.as_strided((extent,), (1,)).view(dtype)
    return buffer.as_strided(sizes, strides, buffer.storage_offset() + offset)


class IndexErrors:
    """Bad indices that kernels note. Where a device runs behind, they are an error of a later call: nothing waits for it."""

    def __init__(self, places: int, device: torch.device) -> None:
        self.notes = torch.full((2 * places,), -1, dtype=torch.int64, device=device)
        """Of each place the index, and the size that it is too large for; -1: there was none."""
        self.waits = device.type != "cpu"
        self.seen = torch.full_like(self.notes, -1, device="cpu")
        if self.waits:
            self.seen = self.seen.pin_memory()

    def raise_earlier(self) -> None:
        if self.waits:
            self._raise()

    def note(self) -> None:
        """After the kernels of a call."""
        if self.waits:
            self.seen.copy_(self.notes, non_blocking=True)
        else:
            self.seen = self.notes
            self._raise()

    def _raise(self) -> None:
        numbers = self.seen.tolist()
        for index, size in zip(numbers[::2], numbers[1::2], strict=True):
            if size >= 0:
                self.notes.fill_(-1)
                self.seen.fill_(-1)
                raise IndexError(f"index {index} is out of bounds for a dimension with size {size}")


class TritonProgram:
    """A graph: called with the list of its inputs, which it empties."""

    _boxed_call = True

    def __init__(self, run: Run, device: torch.device) -> None:
        self.run, self.device = run, device
        self.module = None if device.type == "cpu" else torch.get_device_module(device.type)

    def __call__(self, inputs: list[Any]) -> list[Tensor]:
        other = self.module is not None and self.module.current_device() != self.device.index
        with self.module.device(self.device) if other and self.module is not None else nullcontext():
            return self.run(inputs)
