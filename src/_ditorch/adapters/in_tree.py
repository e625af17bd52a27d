"""Devices that torch brings itself under a name of its own: nothing to import, only to ask."""

from __future__ import annotations

from abc import abstractmethod
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from _ditorch.adapters.base import Adapter, Availability
from _ditorch.adapters.device_view import DeviceView, filled

if TYPE_CHECKING:
    from _ditorch.mapping.translation import Target

__all__ = ["InTreeAdapter"]


class InTreeAdapter(Adapter):
    """Everything but the facts: a subclass states names, and whether torch was built for the device."""

    package = "torch"
    renamed: ClassVar[dict[str, str]] = {}
    """Names of torch.cuda that the device module has under another name."""
    tools: ClassVar[str] = "the driver"

    def names(self) -> tuple[str, ...]:
        # The package is torch for all of them, so it names none.
        return tuple(dict.fromkeys((self.name, self.device_type, *self.aliases)))

    @abstractmethod
    def built(self) -> bool:
        """Whether the installed torch was compiled for the device."""

    def module(self) -> Any:
        return getattr(torch, self.device_type)

    def availability(self) -> Availability:
        if not self.built():
            return Availability(
                devices=0,
                missing=f"this torch ({torch.__version__}) was built without {self.name}",
                advice=self.how_to_install,
            )
        try:
            count = int(self.module().device_count())
        except Exception as error:  # a driver can fail in any way, and looking must not
            return Availability(
                devices=0,
                missing=f"torch cannot count its {self.name} devices: {type(error).__name__}: {error}",
                advice=f"check {self.tools}",
                broken=True,
            )
        if count:
            return Availability(devices=count)
        return Availability(
            devices=0,
            missing=f"torch was built for {self.name} but finds no device",
            advice=f"check {self.tools}" + (f" and {self.visible_devices}" if self.visible_devices else ""),
        )

    def load(self) -> None:
        if not self.built():
            raise ImportError(f"this torch ({torch.__version__}) was built without {self.name}")

    def version(self) -> str:
        return torch.__version__

    def vendor(self) -> str:
        return self.device_type

    def target(self) -> Target | None:
        module = self.module()
        return self.target_for(DeviceView(module, self.renamed, {**filled(module), **self.added(module)}))

    def added(self, module: ModuleType) -> dict[str, Any]:
        """Names of torch.cuda that the device module lacks and that can be had in another way."""
        return {}
