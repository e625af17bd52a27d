"""What ditorch must know about a framework that brings a device to torch."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ditorch.mapping.target import Target

__all__ = ["Adapter", "Availability"]


@dataclass(frozen=True)
class Availability:
    """Whether a framework can be used here, and if not, what is missing and what to do about it."""

    devices: int
    missing: str = ""
    advice: str = ""

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
    """The lowest usable one is chosen. Real chips come before simulated ones."""
    how_to_install: ClassVar[str] = ""
    """Advice for a user who wants this framework and does not have it."""

    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def wish(self) -> str:
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

    def label(self) -> str:
        """The text after 'ditorch.framework:'."""
        vendor = self.vendor()
        return f"{self.package}:{self.version()}" + (f" ({vendor})" if vendor else "")
