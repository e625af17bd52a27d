"""torch_musa: Moore Threads GPUs, the device 'musa'. The package itself is the module torch.musa."""

from __future__ import annotations

from typing import ClassVar

from _ditorch.adapters.extension import ExtensionAdapter

__all__ = ["ADAPTER"]


class MusaAdapter(ExtensionAdapter):
    name = "musa"
    package = "torch_musa"
    device_type = "musa"
    priority = 30
    process_group = "mccl"
    visible_devices = "MUSA_VISIBLE_DEVICES"
    own_mappings = ("torchada",)
    renamed: ClassVar = {"CUDAGraph": "MUSAGraph"}
    tools = "the driver (mthreads-gmi)"
    how_to_install = "install the MUSA toolkit and the vendor's wheel of torch_musa for your torch"


ADAPTER = MusaAdapter()
