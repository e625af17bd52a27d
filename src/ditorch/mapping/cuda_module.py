"""Every public name of `torch.cuda`: mapped, derived, kept, or refused with a reason.

The list of names is torch's own (`torch.cuda.__all__`), so a name that a newer torch adds is at worst
refused clearly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ditorch.mapping.markers import SilentMarkers
from ditorch.mapping.patches import Patches
from ditorch.mapping.target import RealDevice, Target
from ditorch.mapping.unmapped import placeholder
from ditorch.mapping.wrapping import disguise, translate_all

__all__ = ["apply"]

# Constants, exception classes and submodules mean the same with or without cuda hardware.
_KEPT = frozenset(("CudaError", "DeferredCudaCallError", "has_half", "has_magma"))
_LEGACY_SUFFIXES = ("Tensor", "Storage")
# Where the same functions are reachable by their module of origin.
_SUBMODULES = ("memory", "random", "streams")


def apply(patches: Patches, target: Target) -> None:
    replacements = _public_names(target)
    for name, replacement in replacements.items():
        patches.set(torch.cuda, name, replacement)
    for submodule in (getattr(torch.cuda, name) for name in _SUBMODULES):
        for name in getattr(submodule, "__all__", ()):
            if name in replacements and hasattr(submodule, name):
                patches.set(submodule, name, replacements[name])
    _private_names(patches, target)
    patches.set(torch.cuda.nvtx, "_nvtx", SilentMarkers())


def _public_names(target: Target) -> dict[str, Any]:
    derived = _derived(target)
    replacements: dict[str, Any] = {}
    for name in torch.cuda.__all__:
        original = getattr(torch.cuda, name)
        if name in _KEPT or isinstance(original, ModuleType) or name.endswith(_LEGACY_SUFFIXES):
            continue
        offered = getattr(target.module, name, None)
        if name == "get_device_properties" and offered is not None:
            replacements[name] = disguise(_properties(offered, target), offered, "torch.cuda", name)
        elif offered is not None:
            replacements[name] = _offered(name, offered, target)
        elif name in derived:
            replacements[name] = disguise(derived[name], original, "torch.cuda", name)
        else:
            replacements[name] = placeholder(name, original, target.device_type)
    return replacements


def _offered(name: str, offered: Any, target: Target) -> Any:
    """The device module's own object; a function with parameters also accepts 'cuda:1'."""
    if not inspect.isfunction(offered) or not inspect.signature(offered).parameters:
        return offered
    return disguise(translate_all(offered, target), offered, "torch.cuda", name)


class CudaProperties:
    """A device's properties under the names that torch reads from a cuda device.

    A torch that was built without cuda asks for `gcnArchName`, the architecture of the other kind of card
    it knows; torch.compile does so for any function, on the CPU too.
    """

    def __init__(self, properties: Any) -> None:
        self._properties = properties

    @property
    def gcnArchName(self) -> str:
        return getattr(self._properties, "gcnArchName", self._properties.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._properties, name)

    def __repr__(self) -> str:
        return repr(self._properties)


def _properties(offered: Callable[..., Any], target: Target) -> Callable[..., CudaProperties]:
    call = translate_all(offered, target)

    def get_device_properties(device: Any = None) -> CudaProperties:
        return CudaProperties(call(device))

    return get_device_properties


def _derived(target: Target) -> dict[str, Callable[..., Any]]:
    """Names that the device module lacks but that follow from others which it has."""
    module = target.module

    def device_memory_used(device: Any = None) -> int:
        free, total = module.mem_get_info(target.translate(device))
        return total - free

    def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
        return _nested(module.memory_stats(target.translate(device)))

    return {
        "device_memory_used": device_memory_used,
        "memory_stats_as_nested_dict": memory_stats_as_nested_dict,
        "memory_cached": lambda device=None: module.memory_reserved(target.translate(device)),
        "max_memory_cached": lambda device=None: module.max_memory_reserved(target.translate(device)),
        "reset_max_memory_allocated": lambda device=None: module.reset_peak_memory_stats(
            target.translate(device)
        ),
        "reset_max_memory_cached": lambda device=None: module.reset_peak_memory_stats(
            target.translate(device)
        ),
        "get_allocator_backend": lambda: "native",
        "get_sync_debug_mode": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "is_tf32_supported": lambda: False,
    }


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    """{'a.b': 1} as {'a': {'b': 1}}, the shape that torch documents."""
    nested: dict[str, Any] = {}
    for dotted, value in flat.items():
        *parents, leaf = dotted.split(".")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})
        level[leaf] = value
    return nested


def _private_names(patches: Patches, target: Target) -> None:
    """Private functions that torch itself, or libraries, call on the way to a cuda device."""
    original = torch.cuda._utils._get_device_index

    def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
        device = device if type(device) is int else target.translate(device)
        if type(device) is str:
            device = RealDevice(device)
        if type(device) is RealDevice and device.type == target.device_type:
            if device.index is not None:
                return device.index
            device = None
        if isinstance(device, target.module.device):
            return device.idx
        return original(device, optional, allow_cpu)

    replacement = disguise(_get_device_index, original, "torch.cuda._utils", "_get_device_index")
    for module in (torch.cuda, torch.cuda._utils, torch.cuda.memory, torch.cuda.random):
        if vars(module).get("_get_device_index") is original:
            patches.set(module, "_get_device_index", replacement)
    patches.set(torch.cuda, "_lazy_init", target.module.init)
    patches.set(torch.cuda, "_is_in_bad_fork", getattr(target.module, "_is_in_bad_fork", lambda: False))
