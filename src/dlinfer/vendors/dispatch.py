"""Vendors of kernels: what one is, which are installed, and whose kernel serves a call.

A vendor announces itself by an entry point of the group `dlinfer.vendors` whose object is a `Vendor`. `DLINFER_VENDOR`
names the one to use; without it the available vendor of highest priority for the device is taken. Operators that it has no
kernel for, and devices that it does not serve, fall to `ref`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from dlinfer.adaptor.engine import adapted
from dlinfer.errors import VendorError
from dlinfer.interface import OPERATORS
from dlinfer.interface.declaration import Kernel
from dlinfer.settings import CHECK, VENDOR

if TYPE_CHECKING:
    from dlinfer.adaptor.rules import Rule

GROUP = "dlinfer.vendors"
REFERENCE = "ref"
# The vendors of this package; a module that was not built or packed is not there.
_OWN = {"ref": "dlinfer.vendors.ref", "cpp": "dlinfer.vendors.cpp", "triton": "dlinfer.vendors.triton"}


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
    problem: Callable[[], str | None] = lambda: None
    """Why it cannot be used on this machine, or None. Cheap."""

    def serves(self, device: str) -> bool:
        """Whether it has kernels for a type of device."""
        return not self.devices or device in self.devices


class Values(Enum):
    """Whether values (lengths, block tables, indices) are checked before a kernel runs."""

    ALWAYS = "always"
    CHEAP = "cheap"
    TRUSTED = "trusted"


@dataclass(frozen=True, slots=True)
class Resolved:
    """Who serves an operator on a device."""

    vendor: str
    kernel: Kernel
    values: Values


@dataclass(frozen=True, slots=True)
class VendorStatus:
    """A vendor that announced itself: the vendor, or why it cannot be used."""

    name: str
    vendor: Vendor | None
    problem: str | None


RESOLVED: dict[tuple[str, str], Resolved] = {}
"""What `resolve` found, by operator and type of device."""
_WANTED: list[str] = []
# Choices are made rarely and used by every call: only making them is guarded.
_CHOOSING = threading.RLock()


@cache
def installed() -> dict[str, VendorStatus]:
    """All vendors that announce themselves, by name; also those that cannot be used."""
    found = {}
    for name, module in _OWN.items():
        if find_spec(module) is not None:
            found[name] = _found(name, lambda module=module: import_module(module).VENDOR)  # type: ignore[misc]
    for point in entry_points(group=GROUP):
        if point.name not in found:
            found[point.name] = _found(point.name, point.load)
    return found


def _found(name: str, load: Kernel) -> VendorStatus:
    """A vendor that cannot be imported, or whose rules are wrong, is a problem of that vendor only."""
    try:
        vendor = load()
        if not isinstance(vendor, Vendor):
            raise VendorError(
                f"its entry point gives {type(vendor).__name__}, expected a dlinfer.vendors.Vendor"
            )
        _kernels(vendor)
        return VendorStatus(name, vendor, vendor.problem())
    except Exception as error:
        return VendorStatus(name, None, f"{type(error).__name__}: {error}")


_ADAPTED: dict[int, tuple[Vendor, dict[str, Kernel]]] = {}


def _kernels(vendor: Vendor) -> dict[str, Kernel]:
    """The vendor's kernels behind its rules, made once; an operator that does not exist is an error."""
    if id(vendor) in _ADAPTED:
        return _ADAPTED[id(vendor)][1]
    strangers = sorted((set(vendor.kernels) | set(vendor.rules)) - set(OPERATORS))
    if strangers:
        raise VendorError(f"{vendor.name} has kernels or rules for unknown operators: {', '.join(strangers)}")
    lonely = sorted(set(vendor.rules) - set(vendor.kernels))
    if lonely:
        raise VendorError(f"{vendor.name} has rules without a kernel: {', '.join(lonely)}")
    kernels = {
        name: adapted(OPERATORS[name], kernel, vendor.rules.get(name, ()))
        for name, kernel in vendor.kernels.items()
    }
    # The vendor is held, so that no other one can get its id.
    _ADAPTED[id(vendor)] = (vendor, kernels)
    return kernels


def use(vendor: str | None) -> None:
    """Chooses an installed vendor for this process, in place of DLINFER_VENDOR; None goes back to that."""
    if vendor is not None:
        _named(vendor, "the vendor")
    _choose([] if vendor is None else [vendor])


def _choose(wanted: list[str]) -> None:
    with _CHOOSING:
        _WANTED[:] = wanted
        RESOLVED.clear()


@contextmanager
def using(vendor: str | Vendor) -> Iterator[None]:
    """`use` for a while. A `Vendor` need not be installed: it is installed for as long as this lasts."""
    before = list(_WANTED)
    name = vendor if isinstance(vendor, str) else vendor.name
    # Other threads look vendors up meanwhile: one name is added and taken away, the others stay.
    hidden = installed().get(name)
    if isinstance(vendor, Vendor):
        _kernels(vendor)
        installed()[name] = VendorStatus(name, vendor, vendor.problem())
    try:
        use(name)
        yield
    finally:
        _choose(before)
        if isinstance(vendor, Vendor):
            if hidden is None:
                installed().pop(name, None)
            else:
                installed()[name] = hidden


def chosen(device: str) -> Vendor:
    """The vendor that is asked first for a type of device. VendorError: DLINFER_VENDOR names none that can be used."""
    wanted = _WANTED[0] if _WANTED else VENDOR.get()
    if wanted:
        vendor = _named(wanted, f"{VENDOR.name}={wanted!r}" if not _WANTED else "the vendor")
        return vendor if vendor.serves(device) else _named(REFERENCE, REFERENCE)
    usable = [f.vendor for f in list(installed().values()) if f.vendor is not None and f.problem is None]
    return max((v for v in usable if v.serves(device)), key=lambda v: v.priority)


def _named(name: str, origin: str) -> Vendor:
    found = installed().get(name)
    if found is None:
        names = ", ".join(sorted(installed()))
        raise VendorError(f"{origin} names no installed vendor of dlinfer: {name!r}; installed are: {names}")
    if found.vendor is None or found.problem is not None:
        raise VendorError(f"the vendor {name!r} cannot be used: {found.problem}")
    return found.vendor


def served_by(operator: str, device: str) -> Vendor:
    """Whose kernel serves an operator on a type of device."""
    vendor = chosen(device)
    return vendor if operator in vendor.kernels else _named(REFERENCE, REFERENCE)


def resolve(operator: str, device: str) -> Resolved:
    """Decides, and remembers."""
    with _CHOOSING:
        vendor = served_by(operator, device)
        found = Resolved(vendor.name, _kernels(vendor)[operator], _values(vendor))
        RESOLVED[operator, device] = found
        return found


def _values(vendor: Vendor) -> Values:
    wanted = CHECK.get()
    if wanted == "1" or vendor.values == "always":
        return Values.ALWAYS
    return Values.TRUSTED if wanted == "0" or vendor.values == "own" else Values.CHEAP
