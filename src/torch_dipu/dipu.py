"""The device module: `torch.dipu`, in the shape torch expects of one (compare torch.cuda)."""

from __future__ import annotations

from typing import Any

import torch

from torch_dipu import _C, memory
from torch_dipu.device_index import Device, device_index
from torch_dipu.memory import (
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_dipu.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_dipu.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    get_sync_debug_mode,
    set_stream,
    set_sync_debug_mode,
    stream,
)

__all__ = [
    "Event", "Stream", "StreamContext", "can_device_access_peer", "configure", "current_device", "current_stream",
    "default_generators", "default_stream", "device", "device_count", "device_of", "empty_cache", "get_amp_supported_dtype",
    "get_arch_list", "get_device_capability", "get_device_name", "get_device_properties", "get_per_process_memory_fraction",
    "get_rng_state", "get_rng_state_all", "get_sync_debug_mode",
    "init", "initial_seed", "ipc_collect", "is_available", "is_bf16_supported",
    "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory", "memory_allocated", "memory_reserved", "memory_snapshot", "memory_stats", "memory_summary", "op_counts", "option",
    "reset_accumulated_memory_stats", "reset_op_counts", "reset_peak_memory_stats", "seed", "seed_all", "set_device",
    "set_per_process_memory_fraction", "set_rng_state", "set_rng_state_all",
    "set_stream", "set_sync_debug_mode", "stream", "synchronize", "vendor",
    "vendor_name",
]  # fmt: skip


# ---- devices ----


def is_available() -> bool:
    """Whether there is a vendor with a device."""
    return _C.device_count() > 0


def device_count() -> int:
    return _C.device_count()


def current_device() -> int:
    """The index of this thread's device."""
    _C.check_device(0)
    return _C.current_device()


def set_device(device: Device) -> None:
    """Sets this thread's device; a negative index is ignored, as in torch.cuda."""
    index = device_index(device)
    if index >= 0:
        _C.check_device(index)
        _C.set_device(index)


def synchronize(device: Device = None) -> None:
    """Waits for all work on a device; an error of that work is raised here."""
    _C.synchronize(device_index(device))


def _exchange_device(index: int) -> int:
    """Sets this thread's device and gives the one before; a negative index changes nothing and gives -1."""
    if index < 0:
        return -1
    _C.check_device(index)
    return _C.exchange_device(index)


def _maybe_exchange_device(index: int) -> int:
    """The way back from `_exchange_device`; here the two are one, as no device is woken up by being chosen."""
    return _exchange_device(index)


class device:
    """Context manager: this thread works on the given device."""

    __dipu__ = "dipu"

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else device_index(device)
        self._previous = -1

    def __enter__(self) -> device:
        self._previous = _exchange_device(self.idx)
        return self

    def __exit__(self, *_: object) -> None:
        _maybe_exchange_device(self._previous)


class device_of(device):
    """Context manager: this thread works on the device of a tensor or storage."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.device.type == "dipu" else -1)


def init() -> None:
    """Loads the vendor; raises what is wrong with it. Otherwise done on first use."""
    _C.check_device(0)


def is_initialized() -> bool:
    return is_available()


def _lazy_init() -> None:
    init()


def _is_in_bad_fork() -> bool:
    return False


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # asked by torch.utils.checkpoint before it keeps the random state
        return is_available()
    raise AttributeError(f"module 'torch.dipu' has no attribute {name!r}")


class _Properties:
    """What a device says of itself."""

    name: str
    total_memory: int
    multi_processor_count: int
    major: int
    minor: int
    vendor: str

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return (
            f"_DipuDeviceProperties(name='{self.name}', vendor='{self.vendor}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, multi_processor_count={self.multi_processor_count})"
        )


def get_device_properties(device: Device = None) -> _Properties:
    return _Properties(**_C.properties(device_index(device)), vendor=vendor_name())


def get_device_name(device: Device = None) -> str:
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_arch_list() -> list[str]:
    return []


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether one device can copy from another without the host."""
    _C.check_device(device_index(device))
    _C.check_device(device_index(peer_device))
    return device_index(device) != device_index(peer_device)


def ipc_collect() -> None:
    """Nothing to collect: device memory is not shared between processes."""


# ---- what it can do ----


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


# ---- the vendor ----


def vendor() -> dict[str, Any]:
    """The vendor in use: name, library, version of its interface, features, number of operators."""
    from diopi.table import load  # takes a moment, which only those who ask for it should spend

    return _C.describe_vendor([name for name, entry in load().entries.items() if entry is not None])


def vendor_name() -> str:
    """The vendor's name alone, for those who ask often: counting its operators takes the whole operator table."""
    name: str = _C.describe_vendor([])["name"]
    return name


def option(name: str) -> str:
    """The value of a setting of the vendor's own."""
    return _C.option(name)


def configure(**options: object) -> None:
    """Changes settings of the vendor's own while the program runs, after all queued work is done."""
    for name, value in options.items():
        _C.set_option(name, str(int(value)) if isinstance(value, bool) else str(value))


def op_counts() -> dict[str, dict[str, int]]:
    """How often each operator ran, and in which way: by its DIOPI function, by alias, by copies to the CPU."""
    ways = ("diopi", "alias", "copy")
    return {name: {way: counts[way] for way in ways} for name, counts in _C.op_counts().items()}


def reset_op_counts() -> None:
    _C.reset_op_counts()
