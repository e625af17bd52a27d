"""torch_br: Biren GPUs, the device 'supa'."""

from __future__ import annotations

from typing import ClassVar

from _ditorch.adapters.extension import ExtensionAdapter

__all__ = ["ADAPTER"]


class SupaAdapter(ExtensionAdapter):
    name = "supa"
    package = "torch_br"
    device_type = "supa"
    priority = 40
    process_group = "sccl"
    visible_devices = "SUPA_VISIBLE_DEVICES"
    own_mappings = ("torch_br.contrib.transfer_to_supa",)
    renamed: ClassVar = {"CUDAGraph": "SUPAGraph"}
    tools = "the driver (brsmi)"
    how_to_install = "install the BIRENSUPA SDK and the vendor's wheel of torch_br for your torch"


ADAPTER = SupaAdapter()
