"""Devices that torch brings itself under a name of its own: nothing to import, only to ask."""

from __future__ import annotations

from abc import abstractmethod

import torch

from _ditorch.adapters.base import Adapter, Availability

__all__ = ["InTreeAdapter"]


class InTreeAdapter(Adapter):
    """Everything but the facts: a subclass states names, and whether torch was built for the device."""

    package = "torch"

    def names(self) -> tuple[str, ...]:
        # The package is torch for all of them, so it names none.
        return tuple(dict.fromkeys((self.name, self.device_type, *self.aliases)))

    @abstractmethod
    def built(self) -> bool:
        """Whether the installed torch was compiled for the device."""

    def availability(self) -> Availability:
        if not self.built():
            return Availability(
                devices=0,
                missing=f"this torch ({torch.__version__}) was built without {self.name}",
                advice=self.how_to_install,
            )
        return self.ask()

    def load(self) -> None:
        if not self.built():
            raise ImportError(f"this torch ({torch.__version__}) was built without {self.name}")

    def version(self) -> str:
        return torch.__version__

    def vendor(self) -> str:
        return self.device_type
