"""torch.xpu: Intel GPUs, in torch itself."""

import torch

from _ditorch.adapters.in_tree import InTreeAdapter


class XpuAdapter(InTreeAdapter):
    name = device_type = "xpu"
    priority = 45
    process_group = "xccl"
    visible_devices = "ZE_AFFINITY_MASK"
    tools = "the driver (xpu-smi discovery, or clinfo)"
    how_to_install = "install a torch build for xpu"

    def built(self) -> bool:
        return bool(getattr(torch.version, "xpu", None))
