"""torch.xpu: Intel GPUs, in torch itself."""

from __future__ import annotations

from typing import ClassVar

import torch

from _ditorch.adapters.in_tree import InTreeAdapter

__all__ = ["ADAPTER"]


class XpuAdapter(InTreeAdapter):
    name = "xpu"
    device_type = "xpu"
    priority = 45
    process_group = "xccl"
    visible_devices = "ZE_AFFINITY_MASK"
    renamed: ClassVar = {"CUDAGraph": "XPUGraph", "CUDAPluggableAllocator": "XPUPluggableAllocator"}
    tools = "the driver (xpu-smi discovery, or clinfo)"
    how_to_install = "install a torch build for xpu"

    def built(self) -> bool:
        return bool(getattr(torch.version, "xpu", None))


ADAPTER = XpuAdapter()
