"""Stand-in for torch_musa: the device 'musa' and the process group 'mccl'.

The package itself is the device module, has no `init`, and takes torch's place for its device before it loads its
library: when that fails, the place is taken.
"""

import sys

import chip_driver
import torch

torch.utils.rename_privateuse1_backend("musa")
chip_driver.fail_if_told("torch_musa")

__version__ = "2.5.0"
CHIP = chip_driver.Chip("musa", "mccl", "MUSA_VISIBLE_DEVICES", maker="MTT S4000")
CHIP.offer(
    sys.modules[__name__],
    """
    is_available device_count current_device set_device synchronize device get_device_properties get_device_name
    get_device_capability can_device_access_peer is_initialized Stream Event stream current_stream default_stream
    set_stream empty_cache memory_stats memory_allocated max_memory_allocated memory_reserved max_memory_reserved
    reset_peak_memory_stats mem_get_info manual_seed manual_seed_all initial_seed seed seed_all get_rng_state
    set_rng_state get_rng_state_all set_rng_state_all get_amp_supported_dtype _lazy_init _is_in_bad_fork
    """,
)
CHIP.register(sys.modules[__name__])


class MUSAGraph:
    """What torch.cuda calls CUDAGraph."""
