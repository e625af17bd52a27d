"""`torch.npu`, of which LMDeploy asks the name and number of devices.

The answers are those of a chip whose caches LMDeploy lays out as [block, position, head, channel]; `is_available` says no,
so that other libraries in the process do not take the device for a real one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from dlinfer.framework.lmdeploy.places import Place

__all__ = ["install"]

_NAME = "Ascend910B (dlinfer)"
# LMDeploy reads from it how ranks exchange tokens of experts: 220 to 225 is the generation with plain collectives.
_CHIP_VERSION = 220


class DeviceModule(ModuleType):
    """Stands for the module that a package for the chip would bring."""

    def __init__(self, place: Place) -> None:
        super().__init__("torch.npu", __doc__)
        self._place = place

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        """How many devices tensors can be on; one CPU."""
        return 1 if self._place is Place.CPU else torch.cuda.device_count()

    def current_device(self) -> Any:
        """A device in a notation that factories of torch take."""
        return "cpu" if self._place is Place.CPU else torch.cuda.current_device()

    def get_device_name(self, device: Any = None) -> str:
        return _NAME

    def get_soc_version(self) -> int:
        return _CHIP_VERSION


def install(place: Place) -> None:
    """Put the module in place, unless a package for the real chip has."""
    if not hasattr(torch, "npu"):
        torch.npu = DeviceModule(place)  # type: ignore[attr-defined]
