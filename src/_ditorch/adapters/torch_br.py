"""torch_br: Biren GPUs, the device 'supa'."""

from _ditorch.adapters.extension import ExtensionAdapter


class SupaAdapter(ExtensionAdapter):
    name = device_type = "supa"
    package = "torch_br"
    priority = 40
    process_group = "sccl"
    visible_devices = "SUPA_VISIBLE_DEVICES"
    own_mappings = ("torch_br.contrib.transfer_to_supa",)
    tools = "the driver (brsmi)"
    how_to_install = "install the BIRENSUPA SDK and the vendor's wheel of torch_br for your torch"
