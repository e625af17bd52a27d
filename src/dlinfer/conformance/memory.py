"""Puts the tensors of a case on a device as they lie on the CPU, and sees what a call did to them.

Tensors that share memory share it there too; strides, gaps and offsets are the same. Everything that a call may not write
(inputs, gaps, the rest of a shared buffer) must hold the same bits afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Placed:
    """The arguments of one call, on a device."""

    def __init__(self, arguments: dict[str, Any], device: str, host: Iterable[str] = ()) -> None:
        self.arguments: dict[str, Any] = {}
        self._buffers: dict[tuple[int, str, torch.dtype], tuple[Tensor, Tensor, list[str]]] = {}
        kept = set(host)
        for name, value in arguments.items():
            there = "cpu" if name in kept else device
            self.arguments[name] = self._placed(name, value, there) if isinstance(value, Tensor) else value

    def _placed(self, name: str, value: Tensor, device: str) -> Tensor:
        storage = value.untyped_storage()
        key = (storage.data_ptr(), device, value.dtype)
        if key not in self._buffers:
            before = torch.empty(0, dtype=value.dtype).set_(storage).clone()
            # clone: .to() gives the same memory where nothing moves.
            self._buffers[key] = (before, before.to(device).clone(), [])
        _, there, names = self._buffers[key]
        names.append(name)
        return there.as_strided(value.shape, value.stride(), value.storage_offset())

    def damaged(self, written: Iterable[str]) -> list[str]:
        """The arguments around or in which something changed that may not."""
        allowed = set(written)
        found = []
        for before, there, names in self._buffers.values():
            may = torch.zeros(before.shape, dtype=torch.bool)
            for name in allowed.intersection(names):
                value = self.arguments[name]
                may.as_strided(value.shape, value.stride(), value.storage_offset()).fill_(True)
            if bool((~may & _differs(before, there.cpu())).any()):
                found.append(" and ".join(names))
        return found


def _differs(one: Tensor, other: Tensor) -> Tensor:
    """Bit for bit."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return one.view(bits) != other.view(bits)
