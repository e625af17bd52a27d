"""Stand-in for torch_mlu: the device 'mlu' and the process group 'cncl'. The device module is torch_mlu.mlu."""

import chip_driver

chip_driver.fail_if_told("torch_mlu")

from torch_mlu import mlu  # noqa: E402

__version__ = "1.24.1"
mlu.CHIP.register(mlu)
