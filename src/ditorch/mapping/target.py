"""What the name 'cuda' stands for while a mapping is in force."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

__all__ = ["RealDevice", "Target"]

RealDevice: type[torch.device] = type(torch.empty(0).device)
"""torch's own device type, also when `torch.device` has been replaced by the time this module is imported."""

_SOURCE = "cuda"
_SOURCE_WITH_INDEX = f"{_SOURCE}:"


@dataclass(frozen=True)
class Target:
    """The device that takes cuda's place.

    `module` is the device's counterpart of `torch.cuda`; `process_group` is the distributed backend that
    takes the place of 'nccl', None when the device has none; `averages` says that it knows ReduceOp.AVG.
    """

    device_type: str
    module: ModuleType
    process_group: str | None = None
    averages: bool = False

    @property
    def is_from_outside(self) -> bool:
        """Whether the device was registered by a package, in torch's one place for such devices."""
        # Private, but the only way to ask: the public function can only set the name.
        return self.device_type == torch._C._get_privateuse1_backend_name()

    def device(self, index: int | None = None) -> torch.device:
        return RealDevice(self.device_type) if index is None else RealDevice(self.device_type, index)

    def translate(self, device: Any) -> Any:
        """A device in any notation with 'cuda' replaced; whatever is no device comes back unchanged."""
        kind = type(device)
        if kind is RealDevice:
            return self.device(device.index) if device.type == _SOURCE else device
        if kind is str:
            if device == _SOURCE or device.startswith(_SOURCE_WITH_INDEX):
                return self.device_type + device[len(_SOURCE) :]
            return device
        if kind is int:
            # A bare index means "the accelerator"; on a CUDA build of torch that would be the real cuda.
            return RealDevice(self.device_type, device)
        return device

    def translate_type(self, device_type: Any) -> Any:
        """Like `translate`, for arguments that name a device type and never a device index."""
        return self.device_type if device_type == _SOURCE else device_type
