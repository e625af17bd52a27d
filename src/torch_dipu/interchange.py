"""DLPack: what other libraries ask a tensor of the device before they take its memory."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils.dlpack

__all__ = ["register"]


def register() -> None:
    """Called once, when the device is registered."""
    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type == "dipu":
            # torch's own answer knows such devices only under the name they have before they get one.
            return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index or 0
        return original(self)

    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]
