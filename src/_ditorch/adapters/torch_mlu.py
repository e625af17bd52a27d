"""torch_mlu: Cambricon MLUs, the device 'mlu'."""

from _ditorch.adapters.extension import ExtensionAdapter


class MluAdapter(ExtensionAdapter):
    name = device_type = "mlu"
    package = "torch_mlu"
    priority = 20
    process_group = "cncl"
    visible_devices = "MLU_VISIBLE_DEVICES"
    own_mappings = ("torch_mlu.utils.gpu_migration",)
    tools = "the driver (cnmon) and NEUWARE_HOME"
    how_to_install = "install the CNToolkit and the vendor's wheel of torch_mlu for your torch"
