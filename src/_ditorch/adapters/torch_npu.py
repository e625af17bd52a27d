"""torch_npu: Ascend NPUs, the device 'npu'."""

from _ditorch.adapters.extension import ExtensionAdapter


class NpuAdapter(ExtensionAdapter):
    name = device_type = "npu"
    package = "torch_npu"
    aliases = ("ascend",)
    priority = 10
    process_group = "hccl"
    visible_devices = "ASCEND_RT_VISIBLE_DEVICES"
    # It also swaps torch.jit.script for a function that does nothing and cannot be taken back.
    own_mappings = ("torch_npu.contrib.transfer_to_npu", "transfer_to_npu")
    tools = "the driver (npu-smi info) and the CANN environment (set_env.sh)"
    how_to_install = "install CANN, then `pip install torch-npu` in the version of your torch"
