"""Which framework to use, and why."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ditorch.adapters import Adapter, Availability, all_adapters

__all__ = [
    "Choice",
    "NoFrameworkError",
    "PassedOver",
    "UnknownDeviceError",
    "choose",
    "framework_wanted",
    "mapping_wanted",
    "wrong_switches",
]

_DEVICE = "DITORCH_DEVICE"
_NONE = "none"
_OFF_WORDS = frozenset(("0", "false", "off", "no"))
_ON_WORDS = frozenset(("1", "true", "on", "yes"))
_SWITCHES = (
    "DITORCH_DISABLE_MOCK",
    "DIPU_MOCK_CUDA",
    "DITORCH_SHOW_DEVICE_AS_CUDA",
    "DITORCH_FP32_COLLECTIVES",
)


class UnknownDeviceError(ValueError):
    """DITORCH_DEVICE names no adapter."""

    def __init__(self, wanted: str, adapters: Sequence[Adapter]) -> None:
        known = sorted(adapter.name for adapter in adapters)
        names = {name: adapter.name for adapter in adapters for name in adapter.names()}
        close = dict.fromkeys(names[name] for name in difflib.get_close_matches(wanted.lower(), names))
        guess = f" Did you mean {' or '.join(close)}?" if close else ""
        self.what = f"{_DEVICE}={wanted!r} is no device that ditorch knows.{guess} Known: {', '.join(known)}."
        self.advice = f"Set {_DEVICE} to one of these, or unset it to let ditorch choose."
        super().__init__(f"{self.what} {self.advice}")


class NoFrameworkError(ValueError):
    """DITORCH_DEVICE=none, and something was asked for that needs a framework."""

    def __init__(self) -> None:
        super().__init__(
            f"{_DEVICE}={_NONE}: ditorch chooses no framework and maps nothing. "
            f"Set {_DEVICE} to a framework, or unset it to let ditorch choose."
        )


@dataclass(frozen=True)
class PassedOver:
    """A framework that is installed and was looked at before the chosen one."""

    adapter: Adapter
    availability: Availability


@dataclass(frozen=True)
class Choice:
    adapter: Adapter
    reason: str
    passed_over: tuple[PassedOver, ...] = ()
    wanted: bool = False
    """Whether the user has named it, in a setting or by an import."""


def choose(adapters: Sequence[Adapter] | None = None, environment: Mapping[str, str] = os.environ) -> Choice:
    """Setting before program before machine: DITORCH_DEVICE, what the program imported, what has a device.

    Of several frameworks with a device the one of the lowest priority number is taken, and the rest is not
    even looked at; `ditorch doctor` looks at all and says which they are.
    """
    candidates = all_adapters() if adapters is None else adapters
    wanted = environment.get(_DEVICE, "").strip()
    if not framework_wanted(environment):
        raise NoFrameworkError
    if wanted:
        return Choice(_by_name(wanted, candidates), f"{_DEVICE}={wanted}", wanted=True)
    for adapter in candidates:
        wish = adapter.wish()
        if wish:
            return Choice(adapter, wish, wanted=True)
    passed: list[PassedOver] = []
    for adapter in candidates[:-1]:
        if adapter.installed():
            availability = adapter.availability()
            if availability.usable:
                return Choice(adapter, "it is installed and has a device", tuple(passed))
            passed.append(PassedOver(adapter, availability))
    # The last resort is taken unseen: if it cannot be loaded, that failure is what the user must see.
    return Choice(candidates[-1], "no other framework has a device", tuple(passed))


def framework_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a framework shall be chosen at all; without one, ditorch is a library and torch is left alone."""
    return environment.get(_DEVICE, "").strip().lower() != _NONE


def mapping_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the names of cuda shall be mapped; both switches are read when ditorch is imported."""
    if environment.get("DITORCH_DISABLE_MOCK", "").strip().lower() in _ON_WORDS:
        return False
    return environment.get("DIPU_MOCK_CUDA", "").strip().lower() not in _OFF_WORDS


def wrong_switches(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A sentence for each switch that is set to neither yes nor no, and so is ignored."""
    return [
        f"{name}={environment[name]!r} is neither on (1, true, on, yes) nor off (0, false, off, no) and is ignored"
        for name in _SWITCHES
        if environment.get(name, "").strip().lower() not in (_ON_WORDS | _OFF_WORDS | {""})
    ]


def _by_name(wanted: str, candidates: Sequence[Adapter]) -> Adapter:
    named = [adapter for adapter in candidates if wanted.lower() in adapter.names()]
    if not named:
        raise UnknownDeviceError(wanted, candidates)
    # One device type may have several frameworks: the installed one is meant.
    return next((adapter for adapter in named if adapter.installed()), named[0])
