"""torch_musa: Moore Threads GPUs, the device 'musa'. The package itself is the module torch.musa."""

from _ditorch.adapters.extension import ExtensionAdapter


class MusaAdapter(ExtensionAdapter):
    name = device_type = "musa"
    package = "torch_musa"
    priority = 30
    process_group = "mccl"
    visible_devices = "MUSA_VISIBLE_DEVICES"
    own_mappings = ("torchada",)
    tools = "the driver (mthreads-gmi)"
    how_to_install = "install the MUSA toolkit and the vendor's wheel of torch_musa for your torch"
