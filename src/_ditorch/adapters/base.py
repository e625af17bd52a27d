"""What ditorch must know about a framework that brings a device to torch."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from _ditorch.mapping.translation import Target

__all__ = ["Adapter", "Availability", "importing_framework", "is_importing_framework"]

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
    """One framework. A subclass in a file of this folder, with an instance named ADAPTER, is all it takes.

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

    @abstractmethod
    def target(self) -> Target | None:
        """Where cuda's names shall lead; None when the device is called cuda already."""

    def target_for(self, module: ModuleType) -> Target:
        """The target of this framework's names, for its device module or a view of it."""
        from _ditorch.mapping.translation import Target

        return Target(
            device_type=self.device_type,
            module=module,
            process_group=self.process_group,
            averages=self.averages,
        )

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
