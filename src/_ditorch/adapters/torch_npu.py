"""torch_npu: Ascend NPUs, the device 'npu'."""

from __future__ import annotations

from typing import ClassVar

from _ditorch.adapters.extension import ExtensionAdapter

__all__ = ["ADAPTER"]


class NpuAdapter(ExtensionAdapter):
    name = "npu"
    package = "torch_npu"
    device_type = "npu"
    aliases = ("ascend",)
    priority = 10
    process_group = "hccl"
    visible_devices = "ASCEND_RT_VISIBLE_DEVICES"
    # It also swaps torch.jit.script for a function that does nothing and cannot be taken back.
    own_mappings = ("torch_npu.contrib.transfer_to_npu", "transfer_to_npu")
    renamed: ClassVar = {"CUDAGraph": "NPUGraph", "CUDAPluggableAllocator": "NPUPluggableAllocator"}
    tools = "the driver (npu-smi info) and the CANN environment (set_env.sh)"
    how_to_install = "install CANN, then `pip install torch-npu` in the version of your torch"


ADAPTER = NpuAdapter()
