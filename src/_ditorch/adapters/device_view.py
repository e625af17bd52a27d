"""A framework's device module under the names of `torch.cuda`.

Frameworks follow torch.cuda closely, but not everywhere: a graph has the chip's name in its class, one
module lacks `init`, another a stream. A view lays the missing names over the module and leaves the module
itself alone, so that code written for the chip sees no change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

__all__ = ["DeviceView", "filled"]


class DeviceView(ModuleType):
    """Answers for `module`; `renamed` says what the module calls a name, `added` what it does not have."""

    def __init__(self, module: ModuleType, renamed: Mapping[str, str], added: Mapping[str, Any]) -> None:
        super().__init__(module.__name__, module.__doc__)
        self._module = module
        self._renamed = dict(renamed)
        vars(self).update(added)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, self._renamed.get(name, name))

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._module), *self._renamed, *vars(self)})


def filled(module: ModuleType) -> dict[str, Any]:
    """What follows from the rest of a device module, for the names that it lacks."""
    candidates: dict[str, Callable[..., Any]] = {
        "init": getattr(module, "_lazy_init", lambda: None),
        "_is_in_bad_fork": lambda: False,
        "is_bf16_supported": lambda including_emulation=True: _supports_bf16(module),
        "get_device_name": lambda device=None: module.get_device_properties(device).name,
        "get_device_capability": lambda device=None: (0, 0),
    }
    added = {name: function for name, function in candidates.items() if not hasattr(module, name)}
    if "get_device_capability" not in added:
        added["get_device_capability"] = _capability(module.get_device_capability)
    return added


def _supports_bf16(module: ModuleType) -> bool:
    offered = getattr(module, "get_amp_supported_dtype", None)
    return offered is not None and torch.bfloat16 in offered()


def _capability(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_device_capability(device: Any = None) -> tuple[int, int]:
        # A chip without such a number answers None. Programs unpack and compare the answer, and then take
        # the way they have for the oldest cards, which is the right one here.
        answer = original(device)
        return (0, 0) if answer is None else answer

    return get_device_capability
