"""torch_mlu: Cambricon MLUs, the device 'mlu'."""

from __future__ import annotations

from typing import ClassVar

from _ditorch.adapters.extension import ExtensionAdapter

__all__ = ["ADAPTER"]


class MluAdapter(ExtensionAdapter):
    name = "mlu"
    package = "torch_mlu"
    device_type = "mlu"
    priority = 20
    process_group = "cncl"
    visible_devices = "MLU_VISIBLE_DEVICES"
    own_mappings = ("torch_mlu.utils.gpu_migration",)
    renamed: ClassVar = {"CUDAGraph": "MLUGraph"}
    tools = "the driver (cnmon) and NEUWARE_HOME"
    how_to_install = "install the CNToolkit and the vendor's wheel of torch_mlu for your torch"


ADAPTER = MluAdapter()
