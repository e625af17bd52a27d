"""torch.mps: Apple GPUs, in torch itself. One device, one stream, no process group."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch

from _ditorch.adapters.in_tree import InTreeAdapter

__all__ = ["ADAPTER"]


class MpsAdapter(InTreeAdapter):
    name = "mps"
    device_type = "mps"
    priority = 60
    renamed: ClassVar = {
        "memory_allocated": "current_allocated_memory",
        "memory_reserved": "driver_allocated_memory",
    }
    tools = "that this is macOS 14 or newer on an Apple chip"
    how_to_install = "needs macOS on an Apple chip"

    def built(self) -> bool:
        return torch.backends.mps.is_built()

    def added(self, module: ModuleType) -> dict[str, Any]:
        """The one device: torch.mps has no functions that choose among several."""
        return _OneDevice(module).functions()


class _OneDevice:
    """What torch.cuda says of a machine with one card, told of torch.mps."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def functions(self) -> dict[str, Any]:
        return {
            "device": _SameDevice,
            "current_device": lambda: 0,
            "set_device": _check,
            "is_initialized": self._module.is_available,
            "synchronize": self._synchronize,
            "get_device_name": lambda device=None: "Apple GPU",
            "get_device_properties": self._properties,
            "mem_get_info": self._mem_get_info,
            "get_rng_state": self._get_rng_state,
            "set_rng_state": self._set_rng_state,
            "get_rng_state_all": lambda: [self._module.get_rng_state()],
            "set_rng_state_all": lambda states: self._module.set_rng_state(next(iter(states))),
            "manual_seed_all": self._module.manual_seed,
            "seed_all": self._module.seed,
        }

    def _synchronize(self, device: Any = None) -> None:
        _check(device)
        self._module.synchronize()

    def _properties(self, device: Any = None) -> SimpleNamespace:
        _check(device)
        total = self._module.recommended_max_memory()
        return SimpleNamespace(name="Apple GPU", total_memory=total, major=0, minor=0)

    def _mem_get_info(self, device: Any = None) -> tuple[int, int]:
        _check(device)
        total = self._module.recommended_max_memory()
        return max(total - self._module.driver_allocated_memory(), 0), total

    def _get_rng_state(self, device: Any = None) -> torch.Tensor:
        _check(device)
        state: torch.Tensor = self._module.get_rng_state()
        return state

    def _set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        _check(device)
        self._module.set_rng_state(new_state)


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


ADAPTER = MpsAdapter()
