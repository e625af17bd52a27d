"""Which device is meant: an index, a name, a torch.device, or none for the current one."""

from __future__ import annotations

import torch
from torch.types import Device

from torch_dipu import _C

__all__ = ["Device", "device_index"]


def device_index(device: Device = None) -> int:
    """The index of a device of this type; ValueError for a device of another type."""
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    named = torch.device(device)
    if named.type != "dipu":
        raise ValueError(
            f"expected a dipu device, got {str(device)!r}; write dipu, dipu:0, an index, or nothing for the current one"
        )
    return _C.current_device() if named.index is None else named.index
