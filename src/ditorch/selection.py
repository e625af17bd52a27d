"""Which framework to use, and why."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ditorch.adapters import Adapter, all_adapters

__all__ = ["Choice", "UnknownDeviceError", "choose", "mapping_wanted"]

_DEVICE = "DITORCH_DEVICE"
_OFF_WORDS = frozenset(("0", "false", "off", "no"))
_ON_WORDS = frozenset(("1", "true", "on", "yes"))


class UnknownDeviceError(ValueError):
    """DITORCH_DEVICE names no adapter."""

    def __init__(self, wanted: str, known: Sequence[str]) -> None:
        self.what = f"{_DEVICE}={wanted!r} is no device that ditorch knows. Known: {', '.join(known)}."
        self.advice = f"Set {_DEVICE} to one of these, or unset it to let ditorch choose."
        super().__init__(f"{self.what} {self.advice}")


@dataclass(frozen=True)
class Choice:
    adapter: Adapter
    reason: str


def choose(adapters: Sequence[Adapter] | None = None, environment: Mapping[str, str] = os.environ) -> Choice:
    """Setting before program before machine: DITORCH_DEVICE, what the program imported, what has a device."""
    candidates = all_adapters() if adapters is None else adapters
    wanted = environment.get(_DEVICE, "").strip()
    if wanted:
        return Choice(_by_name(wanted, candidates), f"{_DEVICE}={wanted}")
    for adapter in candidates:
        wish = adapter.wish()
        if wish:
            return Choice(adapter, wish)
    for adapter in candidates[:-1]:
        if adapter.installed() and adapter.availability().usable:
            return Choice(adapter, "it is installed and has a device")
    # The last resort is taken unseen: if it cannot be loaded, that failure is what the user must see.
    return Choice(candidates[-1], "no other framework has a device")


def mapping_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the names of cuda shall be mapped; both switches are read when ditorch is imported."""
    if environment.get("DITORCH_DISABLE_MOCK", "").strip().lower() in _ON_WORDS:
        return False
    return environment.get("DIPU_MOCK_CUDA", "").strip().lower() not in _OFF_WORDS


def _by_name(wanted: str, candidates: Sequence[Adapter]) -> Adapter:
    for adapter in candidates:
        if wanted.lower() in (adapter.name, adapter.package, adapter.device_type):
            return adapter
    raise UnknownDeviceError(wanted, sorted(adapter.name for adapter in candidates))
