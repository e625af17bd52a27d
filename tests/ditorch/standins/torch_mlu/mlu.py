"""The functions that torch.mlu documents and that torch.cuda has too."""

import sys

from chip_driver import Chip

CHIP = Chip("mlu", "cncl", "MLU_VISIBLE_DEVICES", maker="MLU370")
CHIP.offer(
    sys.modules[__name__],
    """
    is_available device_count current_device set_device synchronize device get_device_properties get_device_name
    get_device_capability can_device_access_peer is_initialized Stream Event stream current_stream default_stream
    set_stream empty_cache memory_stats memory_allocated max_memory_allocated memory_reserved max_memory_reserved
    reset_peak_memory_stats mem_get_info manual_seed manual_seed_all initial_seed seed seed_all get_rng_state
    set_rng_state get_rng_state_all set_rng_state_all get_amp_supported_dtype _lazy_init _is_in_bad_fork
    init is_bf16_supported
    """,
)


class MLUGraph:
    """What torch.cuda calls CUDAGraph."""
