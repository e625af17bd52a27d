"""What the name 'cuda' stands for while a mapping is in force, and wrappers that translate device arguments of torch's functions.

The wrappers are plain Python functions without hidden state, because the compiler inlines them: a graph
then shows the original operator with the real device, and stays whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

__all__ = [
    "RealDevice",
    "Target",
    "own_name",
    "translate_all",
    "translate_first",
    "translate_keyword",
    "translate_leading",
    "translate_type",
]

RealDevice: type[torch.device] = type(torch.empty(0).device)
"""torch's own device type, also when `torch.device` has been replaced by the time this module is imported."""

own_name: Callable[[torch.device], str] = RealDevice.type.__get__  # type: ignore[attr-defined]
"""The name that a device has itself, past the one that `device_names` shows; not for code that is compiled."""

_SOURCE = "cuda"
# All of cuda's devices there can be (their index has 7 bits): asking one for its name takes longer than looking here.
_SOURCES = frozenset([RealDevice(_SOURCE), *(RealDevice(_SOURCE, index) for index in range(128))])
_SOURCE_WITH_INDEX = f"{_SOURCE}:"


@dataclass(frozen=True)
class Target:
    """The device that takes cuda's place.

    `module` is the device's counterpart of `torch.cuda`; `process_group` is the distributed backend that
    takes the place of 'nccl', None when the device has none; `averages` says that it knows ReduceOp.AVG.
    """

    device_type: str
    module: ModuleType
    process_group: str | None = None
    averages: bool = False

    @property
    def is_from_outside(self) -> bool:
        """Whether the device was registered by a package, in torch's one slot for such devices."""
        # Private, but the only way to ask: the public function can only set the name.
        return self.device_type == torch._C._get_privateuse1_backend_name()

    def device(self, index: int | None = None) -> torch.device:
        return RealDevice(self.device_type) if index is None else RealDevice(self.device_type, index)

    def translate(self, device: Any) -> Any:
        """A device in any notation with 'cuda' replaced; whatever is no device comes back unchanged."""
        kind = type(device)
        if kind is RealDevice:
            return self.device(device.index) if device in _SOURCES else device
        if kind is str:
            if device == _SOURCE or device.startswith(_SOURCE_WITH_INDEX):
                return self.device_type + device[len(_SOURCE) :]
            return device
        if kind is int:
            # A bare index means "the accelerator"; on a CUDA build of torch that would be the real cuda.
            return RealDevice(self.device_type, device)
        # The name that `x.device.type` shows is a text of its own class; what torch gets is a plain one.
        return self.translate(str(device)) if isinstance(device, str) else device

    def translate_type(self, device_type: Any) -> Any:
        """Like `translate`, for arguments that name a device type and never a device index."""
        return self.device_type if device_type == _SOURCE else device_type


# -- functions around torch's functions ------------------------------------------------------------------------

_Function = Callable[..., Any]


def translate_keyword(function: _Function, target: Target) -> _Function:
    """For functions that take a device by keyword only, as all factories do."""
    translate = target.translate

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = translate(kwargs["device"])
        return function(*args, **kwargs)

    return wrapper


def translate_first(method: _Function, target: Target, keyword: str = "device") -> _Function:
    """For methods that take a device as the first argument after self, or by keyword."""
    translate = target.translate

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            first = translate(args[0])
            if first is not args[0]:
                args = (first, *args[1:])
        if keyword in kwargs:
            kwargs[keyword] = translate(kwargs[keyword])
        return method(self, *args, **kwargs)

    return wrapper


def translate_all(function: _Function, target: Target) -> _Function:
    """For functions whose arguments are devices, indices or unrelated things that are neither.

    An integer stays as it is: here it may as well be a seed or a size.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = tuple(value if type(value) is int else target.translate(value) for value in args)
        for name, value in kwargs.items():
            if type(value) is not int:
                kwargs[name] = target.translate(value)
        return function(*args, **kwargs)

    return wrapper


def translate_leading(function: _Function, translate: _Function, keyword: str = "device") -> _Function:
    """For functions whose first argument, or a keyword, is what `translate` translates: a device or its type."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if args:
            args = (translate(args[0]), *args[1:])
        if keyword in kwargs:
            kwargs[keyword] = translate(kwargs[keyword])
        return function(*args, **kwargs)

    return wrapper


def translate_type(function: _Function, target: Target) -> _Function:
    """For functions whose first argument, or the keyword `device_type`, names a device type."""
    return translate_leading(function, target.translate_type, "device_type")
