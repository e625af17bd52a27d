"""Stand-in for torch_br: the device 'supa' and the process group 'sccl'. The device module is torch_br.supa."""

import chip_driver

chip_driver.fail_if_told("torch_br")

from torch_br import supa  # noqa: E402

__version__ = "1.10.0"
supa.CHIP.register(supa)
