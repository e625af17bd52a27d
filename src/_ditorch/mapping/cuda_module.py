"""Every public name of `torch.cuda`: mapped, derived, kept, or refused with a reason.

The list of names is torch's own (`torch.cuda.__all__`), so a name that a newer torch adds is at worst
refused clearly.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from _ditorch.mapping import memory
from _ditorch.mapping.patches import Patches, disguise, set_c_attribute
from _ditorch.mapping.translation import RealDevice, Target, translate_all
from _ditorch.mapping.unmapped import REFUSED_SUBMODULES, NotMappedAttribute, placeholder

__all__ = ["CudaProperties", "apply", "ways"]

# The mapping puts another class under the name.
_RealEvent: type = torch.Event

# Constants, exception classes and submodules mean the same with or without cuda hardware.
_KEPT = frozenset(("CudaError", "DeferredCudaCallError", "has_half", "has_magma"))
_LEGACY_SUFFIXES = ("Tensor", "Storage")
# Where the same functions are reachable by their module of origin.
_SUBMODULES = ("graphs", "green_contexts", "memory", "random", "streams")


def apply(patches: Patches, target: Target) -> None:
    replacements = _public_names(target)
    for name, replacement in replacements.items():
        patches.set(torch.cuda, name, replacement)
    for submodule in (getattr(torch.cuda, name) for name in _SUBMODULES if hasattr(torch.cuda, name)):
        for name, replacement in replacements.items():
            if vars(submodule).get(name) is getattr(torch.cuda, name):
                patches.set(submodule, name, replacement)
    _handles(patches, target)
    _refused_submodules(patches, target)
    _private_names(patches, target)


def ways(target: Target) -> dict[str, str]:
    """For each public name of `torch.cuda`, how it is served: the documents are made from this."""
    derived = _derived(target)

    def way(name: str) -> str:
        if isinstance(getattr(torch.cuda, name), ModuleType):
            return "module"
        if name.endswith(_LEGACY_SUFFIXES):
            return "type"
        if name in _KEPT:
            return "kept"
        if getattr(target.module, name, None) is not None:
            return "adapted" if name in _ADAPTED else "offered"
        return "derived" if name in derived else "refused"

    return {name: way(name) for name in torch.cuda.__all__}


def _public_names(target: Target) -> dict[str, Any]:
    derived = _derived(target)
    replacements: dict[str, Any] = {}
    for name, way in ways(target).items():
        original = getattr(torch.cuda, name)
        offered: Any = getattr(target.module, name, None)
        if way == "adapted":
            replacements[name] = disguise(_ADAPTED[name](offered, target), offered, "torch.cuda", name)
        elif way == "offered":
            replacements[name] = _offered(name, offered, target)
        elif way == "derived":
            replacements[name] = disguise(derived[name], original, "torch.cuda", name)
        elif way == "refused":
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
        if name.startswith("_"):  # copy and pickle ask before there are properties
            raise AttributeError(name)
        try:
            return getattr(self._properties, name)
        except AttributeError:
            told = ", ".join(each for each in dir(self._properties) if not each.startswith("_"))
            raise NotMappedAttribute(
                f"torch.cuda.get_device_properties(...).{name}: the device does not tell it; it tells {told}"
            ) from None

    def __repr__(self) -> str:
        return repr(self._properties)


def _properties(offered: Callable[..., Any], target: Target) -> Callable[..., CudaProperties]:
    call = translate_all(offered, target)

    def get_device_properties(device: Any = None) -> CudaProperties:
        return CudaProperties(call(device))

    return get_device_properties


# What devices offer in another shape than torch.cuda does.
_ADAPTED: dict[str, Callable[[Any, Target], Callable[..., Any]]] = {
    "get_device_properties": _properties,
    "memory_snapshot": memory.snapshot_in_segments,
}


def _derived(target: Target) -> dict[str, Callable[..., Any]]:
    """Names that the device module lacks but that follow from others which it has."""
    refuse = placeholder("set_sync_debug_mode", torch.cuda.set_sync_debug_mode, target.device_type)

    def set_sync_debug_mode(debug_mode: int | str) -> None:
        if debug_mode not in (0, "default"):  # to leave it off is no wish that could be missed
            refuse()

    return {
        **memory.derived(target),
        # As torch answers where it was compiled for no architecture.
        "get_gencode_flags": lambda: "",
        "get_sync_debug_mode": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "is_tf32_supported": lambda: False,
        "set_sync_debug_mode": set_sync_debug_mode,
    }


def _handles(patches: Patches, target: Target) -> None:
    """`stream.cuda_stream` and `event.cuda_event`: the numbers under which the device's own libraries know the two."""
    stream: Any = getattr(target.module, "Stream", None)
    if isinstance(stream, type) and not hasattr(stream, "cuda_stream"):
        patches.set(stream, "cuda_stream", _handle("Stream", target, ("native_handle", "stream_id")))
    event: Any = getattr(target.module, "Event", None)
    if not isinstance(event, type) or hasattr(event, "cuda_event"):
        return
    handle = _handle("Event", target, ("event_id",))
    if issubclass(event, _RealEvent):  # a C type: such a device makes objects of torch's own class
        set_c_attribute(patches, _RealEvent, "cuda_event", handle)
    else:
        patches.set(event, "cuda_event", handle)


def _handle(kind: str, target: Target, names: Sequence[str]) -> property:
    """The first of the attributes that an object has: the device's own, `npu_stream`, or those that torch gives."""
    name = f"cuda_{kind.lower()}"
    own = f"{target.device_type}_{kind.lower()}"

    def read(self: Any) -> int:
        for attribute in (own, *names):
            handle = getattr(self, attribute, None)
            if handle is not None:
                return int(handle)
        raise NotMappedAttribute(f"torch.cuda.{kind}.{name}: torch.{target.device_type} tells no handle")

    return property(read)


def _refused_submodules(patches: Patches, target: Target) -> None:
    for owner in REFUSED_SUBMODULES:
        submodule = importlib.import_module(f"torch.cuda.{owner}")
        for name, original in list(vars(submodule).items()):
            if callable(original) and getattr(original, "__module__", "") == submodule.__name__:
                patches.set(submodule, name, placeholder(f"{owner}.{name}", original, target.device_type))


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

    users = (torch.cuda, torch.cuda.memory, torch.cuda.random)
    also = [module for module in users if vars(module).get("_get_device_index") is original]
    patches.wrap(torch.cuda._utils, _get_device_index, also=also)
    patches.set(torch.cuda, "_lazy_init", target.module.init)
    patches.set(torch.cuda, "_is_in_bad_fork", getattr(target.module, "_is_in_bad_fork", lambda: False))
    for name, function in _device_exchange(target).items():
        patches.set(torch.cuda, name, function)


def _device_exchange(target: Target) -> dict[str, Callable[..., Any]]:
    """What torch.cuda's guards are made of."""
    module = target.module

    def _exchange_device(index: int) -> int:
        if index < 0:
            return -1
        before: int = module.current_device()
        module.set_device(index)
        return before

    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        module.set_stream(
            module.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    exchange = getattr(module, "_exchange_device", _exchange_device)
    return {
        "_exchange_device": exchange,
        "_maybe_exchange_device": getattr(module, "_maybe_exchange_device", exchange),
        "_set_stream_by_id": _set_stream_by_id,
        "_sleep": placeholder("_sleep", torch.cuda._sleep, target.device_type),
    }
