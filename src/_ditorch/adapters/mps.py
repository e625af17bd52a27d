"""torch.mps: Apple GPUs, in torch itself. One device, one stream, no process group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from _ditorch.adapters.in_tree import InTreeAdapter

__all__ = ["MpsAdapter"]


class MpsAdapter(InTreeAdapter):
    name = device_type = "mps"
    priority = 60
    renamed: ClassVar = {
        "memory_allocated": "current_allocated_memory",
        "memory_reserved": "driver_allocated_memory",
    }
    tools = "that this is macOS 14 or newer on an Apple chip"
    how_to_install = "needs macOS on an Apple chip"

    def built(self) -> bool:
        return torch.backends.mps.is_built()

    def added(self, module: Any) -> dict[str, Any]:
        """What torch.cuda says of a machine with one card: torch.mps has no functions that choose among several."""

        def synchronize(device: Any = None) -> None:
            _check(device)
            module.synchronize()

        def get_device_properties(device: Any = None) -> SimpleNamespace:
            _check(device)
            total = module.recommended_max_memory()
            return SimpleNamespace(name="Apple GPU", total_memory=total, major=0, minor=0)

        def mem_get_info(device: Any = None) -> tuple[int, int]:
            _check(device)
            total = module.recommended_max_memory()
            return max(total - module.driver_allocated_memory(), 0), total

        def get_rng_state(device: Any = None) -> Any:
            _check(device)
            return module.get_rng_state()

        def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
            _check(device)
            module.set_rng_state(new_state)

        functions = (synchronize, get_device_properties, mem_get_info, get_rng_state, set_rng_state)
        return {function.__name__: function for function in functions} | {
            "device": _SameDevice,
            "current_device": lambda: 0,
            "set_device": _check,
            "is_initialized": module.is_available,
            "get_device_name": lambda device=None: "Apple GPU",
            "get_rng_state_all": lambda: [module.get_rng_state()],
            "set_rng_state_all": lambda states: module.set_rng_state(next(iter(states))),
            "manual_seed_all": module.manual_seed,
            "seed_all": module.seed,
        }


class _SameDevice:
    """Context manager in place of `torch.cuda.device`: there is only one device to be on."""

    def __init__(self, device: Any) -> None:
        self.idx = _check(device)

    def __enter__(self) -> _SameDevice:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _check(device: Any = None) -> int:
    """The index 0, however the device is written; any other index is an error."""
    if isinstance(device, int):
        index = device
    elif device is None:
        index = 0
    else:
        index = torch.device(device).index or 0
    if index > 0:
        raise RuntimeError(f"mps: device index {index} does not exist: there is one device, mps:0")
    return max(index, 0)
