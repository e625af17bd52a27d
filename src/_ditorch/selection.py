"""Which framework to use, and why."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from _ditorch.adapters import Adapter, Availability, all_adapters
from _ditorch.settings import DEVICE, DISABLE_MOCK, MOCK_CUDA
from dicore.settings import declarations
from dicore.suggestions import did_you_mean

__all__ = [
    "Choice",
    "NoFrameworkError",
    "PassedOver",
    "UnknownDeviceError",
    "choose",
    "framework_wanted",
    "ignored_settings",
    "mapping_wanted",
]

_NONE = "none"


class UnknownDeviceError(ValueError):
    """DITORCH_DEVICE names no adapter."""

    def __init__(self, wanted: str, adapters: Sequence[Adapter]) -> None:
        preferred = sorted(adapter.name for adapter in adapters)
        names = {name for adapter in adapters for name in adapter.names()}
        hint = did_you_mean(wanted.lower(), names)
        self.what = (
            f"{DEVICE.name}={wanted!r} is no device that ditorch knows.{hint} Known: {', '.join(preferred)}."
        )
        self.advice = f"Set {DEVICE.name} to one of these, or unset it to let ditorch choose."
        super().__init__(f"{self.what} {self.advice}")


class NoFrameworkError(ValueError):
    """DITORCH_DEVICE=none, and something was asked for that needs a framework."""

    def __init__(self) -> None:
        super().__init__(
            f"{DEVICE.name}={_NONE}: ditorch chooses no framework and maps nothing. "
            f"Set {DEVICE.name} to a framework, or unset it to let ditorch choose."
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
    wanted = DEVICE.get(environment)
    if not framework_wanted(environment):
        raise NoFrameworkError
    if wanted:
        return Choice(_by_name(wanted, candidates), f"{DEVICE.name}={wanted}", wanted=True)
    for adapter in candidates:
        reason = adapter.requested()
        if reason:
            return Choice(adapter, reason, wanted=True)
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
    return bool(DEVICE.get(environment).lower() != _NONE)


def mapping_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the names of cuda shall be mapped; both variables are read when ditorch is imported."""
    return bool(not DISABLE_MOCK.get_or_default(environment) and MOCK_CUDA.get_or_default(environment))


def ignored_settings(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A sentence for each variable that is set to what cannot be read, and so is ignored."""
    problems = (variable.problem(environment) for variable in declarations("_ditorch").values())
    return [f"{problem}; it is ignored" for problem in problems if problem]


def _by_name(wanted: str, candidates: Sequence[Adapter]) -> Adapter:
    named = [adapter for adapter in candidates if wanted.lower() in adapter.names()]
    if not named:
        raise UnknownDeviceError(wanted, candidates)
    # One device type may have several frameworks: the installed one is meant.
    return next((adapter for adapter in named if adapter.installed()), named[0])
