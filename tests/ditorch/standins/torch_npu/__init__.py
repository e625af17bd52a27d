"""Stand-in for torch_npu: the device 'npu' and the process group 'hccl'. The device module is torch_npu.npu."""

import os

import chip_driver

chip_driver.fail_if_told("torch_npu")

from torch_npu import npu  # noqa: E402

__version__ = "2.1.0.post3"
npu.CHIP.register(npu)

if os.environ.get("TORCH_TRANSFER_TO_NPU") == "1":  # documented: the package then maps cuda by itself
    from torch_npu.contrib import transfer_to_npu  # noqa: F401
