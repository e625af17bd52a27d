"""Frameworks that are a package beside torch: importing it registers a device in torch's one free slot.

That slot (PrivateUse1) is given away once in a process. Importing a package only to look whether it has a
device would take the slot from all others, and a package that cannot work here may fail in any way, even
after it has taken it. So a package that is not loaded yet is looked at in a process of its own.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from _ditorch.adapters.base import Adapter, Availability, importing_framework
from _ditorch.adapters.device_view import DeviceView, filled
from _ditorch.adapters.probe import probe

if TYPE_CHECKING:
    from _ditorch.mapping.translation import Target

__all__ = ["FREE_PRIVATEUSE1", "ExtensionAdapter", "privateuse1_is_taken", "registered_device"]

_FREE = "privateuseone"
FREE_PRIVATEUSE1 = (
    "set TORCH_DEVICE_BACKEND_AUTOLOAD=0 so that `import torch` registers none, and import only the package "
    "you want"
)


def registered_device() -> str:
    """The name that torch's one slot (PrivateUse1) was given in this process; empty while it is free."""
    # Private, but the only way to ask: the public function of torch.utils can only set the name.
    name: str = torch._C._get_privateuse1_backend_name()
    return "" if name == _FREE else name


class ExtensionAdapter(Adapter):
    """Everything but the facts: a subclass states names, and what its module calls otherwise."""

    renamed: ClassVar[dict[str, str]] = {}
    """Names of torch.cuda that the device module has under another name."""
    tools: ClassVar[str] = "the driver"
    """What shows the user whether the driver sees a card."""

    def requested(self) -> str:
        if self.package in sys.modules and self.availability().usable:
            return f"the program imported {self.package}"
        return ""

    def availability(self) -> Availability:
        owner = registered_device()
        if owner == self.device_type:
            return self._ask()
        found = probe(self.package, self.device_type)
        if found.error:
            return Availability(
                devices=0,
                missing=f"{self.package} is installed but cannot be imported: {found.error}",
                advice=self.advice_for(found.error),
                broken=True,
                version=found.version,
            )
        if owner and found.devices:
            return Availability(
                devices=0,
                missing=privateuse1_is_taken(owner),
                advice=FREE_PRIVATEUSE1,
                kept_out=found.devices,
                version=found.version,
            )
        return self._availability(found.devices, found.version)

    def advice_for(self, error: str) -> str:
        """What to do about an import that failed with this text."""
        return f"check {self.tools}, and that the package fits torch {torch.__version__}"

    def load(self) -> None:
        owner = registered_device()
        if owner not in ("", self.device_type):
            raise ImportError(f"{privateuse1_is_taken(owner)}. To use {self.package}, {FREE_PRIVATEUSE1}")
        with importing_framework():
            importlib.import_module(self.package)
        if getattr(torch, self.device_type, None) is None:
            raise ImportError(f"its import has not made torch.{self.device_type}")

    def version(self) -> str:
        version = getattr(sys.modules.get(self.package), "__version__", "")
        if version:
            return str(version)
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    def target(self) -> Target:
        module = self._module()
        return self.target_for(DeviceView(module, self.renamed, {**filled(module), **self.added(module)}))

    def added(self, module: ModuleType) -> dict[str, Any]:
        """Names of torch.cuda that this framework lacks and that can be had in another way."""
        return {}

    def _module(self) -> Any:
        return getattr(torch, self.device_type)

    def _ask(self) -> Availability:
        try:
            return self._availability(int(self._module().device_count()), self.version())
        except Exception as error:  # a driver can fail in any way, and looking must not
            return Availability(
                devices=0,
                missing=f"{self.package} cannot count its devices: {type(error).__name__}: {error}",
                advice=f"check {self.tools}",
                broken=True,
                version=self.version(),
            )

    def _availability(self, devices: int, version: str) -> Availability:
        if devices:
            return Availability(devices=devices, version=version)
        return Availability(
            devices=0,
            missing=f"{self.package} is installed but finds no device",
            advice=f"check {self.tools}" + (f" and {self.visible_devices}" if self.visible_devices else ""),
            version=version,
        )


def privateuse1_is_taken(owner: str) -> str:
    """Why a second package cannot register its device."""
    return f"this process has given torch's one slot for such a device (PrivateUse1) to '{owner}'"
