"""What a vendor of kernels is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dlinfer.interface.declaration import Kernel

if TYPE_CHECKING:
    from dlinfer.adaptor.rules import Rule


def _always() -> str | None:
    return None


@dataclass(frozen=True)
class Vendor:
    """Kernels for some operators on some devices. An entry point of the group `dlinfer.vendors` gives one.

    A kernel takes the arguments of the operator's schema (`dlinfer table NAME` shows it), positionally and with the
    schema's defaults, and returns what the schema returns. What the schema marks as written it writes in place. A kernel
    whose arguments differ is adapted by `rules`. It may raise `dlinfer.errors.DlinferArgumentError`.
    """

    name: str
    version: str
    kernels: Mapping[str, Kernel]
    """By the operator's name. What is missing falls to the reference."""
    devices: tuple[str, ...] = ()
    """Types of devices that it serves, as torch names them; none: all."""
    rules: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    """By the operator's name: how its kernel differs from the interface. Checked when the vendor is loaded."""
    priority: int = 0
    """The available vendor of highest priority serves a device, unless DLINFER_VENDOR names another."""
    values: Literal["always", "cheap", "own"] = "cheap"
    """Who checks lengths, block tables and indices before the kernels use them.

    always: the interface, even if it must wait for the device (kernels that must never see bad values). cheap: the
    interface, where they are on the CPU or DLINFER_CHECK=1. own: the kernels themselves.
    """
    problem: Callable[[], str | None] = _always
    """Why it cannot be used on this machine, or None. Cheap."""

    def serves(self, device: str) -> bool:
        """Whether it has kernels for a type of device."""
        return not self.devices or device in self.devices
