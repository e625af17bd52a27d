"""What the name 'cuda' stands for while a mapping is in force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

__all__ = ["RealDevice", "Target", "own_name"]

RealDevice: type[torch.device] = type(torch.empty(0).device)
"""torch's own device type, also when `torch.device` has been replaced by the time this module is imported."""

own_name: Callable[[torch.device], str] = RealDevice.type.__get__  # type: ignore[attr-defined]
"""The name that a device has itself, past the one that `device_names` shows; not for code that is compiled."""

_SOURCE = "cuda"
# All of cuda's devices there can be (their index has 7 bits): asking one for its name takes longer than looking here.
_SOURCES = frozenset([RealDevice(_SOURCE), *(RealDevice(_SOURCE, index) for index in range(128))])
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
            return self.device(device.index) if device in _SOURCES else device
        if kind is str:
            if device == _SOURCE or device.startswith(_SOURCE_WITH_INDEX):
                return self.device_type + device[len(_SOURCE) :]
            return device
        if kind is int:
            # A bare index means "the accelerator"; on a CUDA build of torch that would be the real cuda.
            return RealDevice(self.device_type, device)
        # The name that `x.device.type` shows is a text of its own class; what torch gets is a plain one.
        return self.translate(str(device)) if isinstance(device, str) else device

    def translate_type(self, device_type: Any) -> Any:
        """Like `translate`, for arguments that name a device type and never a device index."""
        return self.device_type if device_type == _SOURCE else device_type
