"""What ditorch must know about a framework that brings a device to torch."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import torch

if TYPE_CHECKING:
    from _ditorch.mapping.translation import Target

__all__ = [
    "Adapter",
    "Availability",
    "DeviceView",
    "importing_framework",
    "is_importing_framework",
    "names_filled_in",
]

_thread = threading.local()


@contextlib.contextmanager
def importing_framework() -> Iterator[None]:
    """While ditorch imports a framework. torch_dipu imports ditorch to have the names of cuda mapped, but not then."""
    before = is_importing_framework()
    _thread.importing = True
    try:
        yield
    finally:
        _thread.importing = before


def is_importing_framework() -> bool:
    """Whether this thread is importing a framework for ditorch."""
    return getattr(_thread, "importing", False)


@dataclass(frozen=True)
class Availability:
    """Whether a framework can be used here, and if not, what is missing and what to do about it."""

    devices: int
    missing: str = ""
    advice: str = ""
    broken: bool = False
    """It is installed but does not work: worth a word, where a missing device is not."""
    kept_out: int = 0
    """Devices that it would have, if another package had not registered its own in this process."""
    version: str = ""
    """Where looking has told it."""

    @property
    def usable(self) -> bool:
        return self.devices > 0


class Adapter(ABC):
    """One framework. A subclass with a name, in a file of this folder, is all it takes.

    Nothing may be imported from the framework before `availability` or `load` is called, so that listing the
    adapters costs nothing.
    """

    name: ClassVar[str]
    """What DITORCH_DEVICE calls it."""
    package: ClassVar[str]
    """The import package that brings the device."""
    device_type: ClassVar[str]
    """What torch.device calls it."""
    priority: ClassVar[int]
    """Of several usable ones the lowest is chosen: packages installed for one chip, then torch's own devices,
    then the simulated one."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that DITORCH_DEVICE may use, where the framework's own documents use them."""
    process_group: ClassVar[str | None] = None
    """The distributed backend that takes the place of 'nccl'."""
    averages: ClassVar[bool] = False
    """Whether that backend knows ReduceOp.AVG; where it does not, the mapping sums and divides."""
    visible_devices: ClassVar[str] = ""
    """The variable that takes the place of CUDA_VISIBLE_DEVICES."""
    own_mappings: ClassVar[tuple[str, ...]] = ()
    """Modules of the framework that, once imported, have mapped the names of cuda themselves."""
    how_to_install: ClassVar[str] = ""
    """Advice for a user who wants this framework and does not have it."""
    tools: ClassVar[str] = "the driver"
    """What shows the user whether the driver sees a card."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Names of torch.cuda that the device module has under another name; a class CUDAx is looked for as NPUx."""

    def installed(self) -> bool:
        if self.package in sys.modules:
            return True
        spec = importlib.util.find_spec(self.package)
        # Any folder of that name makes a package without a file, for example one that holds its sources.
        return spec is not None and spec.origin is not None

    def names(self) -> tuple[str, ...]:
        """All that DITORCH_DEVICE may say to mean this framework, the preferred name first."""
        return tuple(dict.fromkeys((self.name, self.package, self.device_type, *self.aliases)))

    def requested(self) -> str:
        """Why the program has already decided for this framework; empty if it has not."""
        return ""

    @abstractmethod
    def availability(self) -> Availability:
        """Look for devices. May import the framework; must not raise."""

    @abstractmethod
    def load(self) -> None:
        """Import the framework; raises what that import raises."""

    @abstractmethod
    def version(self) -> str: ...

    def vendor(self) -> str:
        """Whose hardware is behind the device, where the framework serves several; else empty."""
        return ""

    def module(self) -> Any:
        """The device's counterpart of torch.cuda."""
        return getattr(torch, self.device_type)

    def ask(self, version: str = "") -> Availability:
        """Count the devices of a framework that is loaded."""
        try:
            return self.counted(int(self.module().device_count()), version)
        except Exception as error:  # a driver can fail in any way, and looking must not
            return Availability(
                devices=0,
                missing=f"{self.package} cannot count its {self.name} devices: {type(error).__name__}: {error}",
                advice=f"check {self.tools}",
                broken=True,
                version=version,
            )

    def counted(self, devices: int, version: str = "") -> Availability:
        """What a number of devices means."""
        if devices:
            return Availability(devices=devices, version=version)
        return Availability(
            devices=0,
            missing=f"{self.package} is installed but finds no {self.name} device",
            advice=f"check {self.tools}" + (f" and {self.visible_devices}" if self.visible_devices else ""),
            version=version,
        )

    def target(self) -> Target | None:
        """Where cuda's names shall lead; None when the device is called cuda already."""
        module = self.module()
        added = {**names_filled_in(module), **self.added(module)}
        return self.target_for(DeviceView(module, self.device_type, self.renamed, added))

    def added(self, module: Any) -> dict[str, Any]:
        """Names of torch.cuda that the device module lacks and that can be had in another way."""
        return {}

    def target_for(self, module: ModuleType) -> Target:
        """The target of this framework's names, for its device module or a view of it."""
        from _ditorch.mapping.translation import Target

        return Target(self.device_type, module, self.process_group, self.averages)

    def follows_visible_devices(self) -> bool:
        """Whether CUDA_VISIBLE_DEVICES can hide devices: the framework reads it, or a variable like it."""
        return bool(self.visible_devices)

    def mapped_by(self) -> str:
        """The module of the framework that has mapped the names of cuda already; empty if none has."""
        return next((module for module in self.own_mappings if module in sys.modules), "")

    def label(self) -> str:
        """The text after 'ditorch.framework:'."""
        vendor = self.vendor()
        return f"{self.package}:{self.version()}" + (f" ({vendor})" if vendor else "")


# -- the device module under the names of torch.cuda ------------------------------------------------------------


class DeviceView(ModuleType):
    """A framework's device module under the names of `torch.cuda`.

    Frameworks follow torch.cuda closely, but not everywhere: a graph has the chip's name in its class, one
    module lacks `init`, another a stream. A view lays the missing names over the module and leaves the module
    itself alone, so that code written for the chip sees no change. `renamed` says what the module calls a name,
    `added` what it does not have.
    """

    def __init__(
        self, module: ModuleType, device_type: str, renamed: Mapping[str, str], added: Mapping[str, Any]
    ) -> None:
        super().__init__(module.__name__, module.__doc__)
        self._module = module
        self._classes = device_type.upper()
        self._renamed = dict(renamed)
        vars(self).update(added)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CUDA"):
            return getattr(self._module, self._renamed.get(name, self._classes + name[len("CUDA") :]))
        return getattr(self._module, self._renamed.get(name, name))

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._module), *self._renamed, *vars(self)})


def names_filled_in(module: ModuleType) -> dict[str, Any]:
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
