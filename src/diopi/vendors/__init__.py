"""Finds vendors: libraries that hold a chip's runtime (include/dipu/vendor.h) and its DIOPI operators.

A vendor announces itself by an entry point of the group `diopi.vendors` whose object is a `Vendor`. `DIPU_DEVICE` names one,
or is the path of a library; without it the available vendor of highest priority is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from dicore.settings import Variable
from diopi.settings import DEVICE

GROUP = "diopi.vendors"


class VendorError(RuntimeError):
    """No vendor can be used; says why and what to do."""


@dataclass(frozen=True)
class Vendor:
    """What an entry point of the group `diopi.vendors` gives."""

    name: str
    library: Path
    priority: int = 0
    available: Callable[[], bool] = lambda: True
    """Cheap: says whether it is worth loading the library (a driver file exists, a device node is there)."""
    needs: str = "the project to be built"
    """What the library is there for, told where it is not."""
    settings: tuple[Variable, ...] = ()
    """Environment variables of the vendor's own; `dipu doctor` and `ditorch config` show them."""

    def problem(self) -> str | None:
        """Why the vendor cannot be used now, or None."""
        if not self.library.is_file():
            return f"its library {self.library} does not exist; it needs {self.needs}"
        if not self.available():
            return "it reports no device on this machine"
        return None


def installed() -> dict[str, Vendor]:
    """All vendors that announce themselves, by name. One that cannot be imported is left out."""
    found: dict[str, Vendor] = {}
    for point in entry_points(group=GROUP):
        try:
            vendor = point.load()
        except Exception:
            continue
        found[point.name] = vendor
    return found


def usable() -> list[str]:
    """The names of installed vendors that can be used on this machine; of all, where none can."""
    vendors = installed()
    return sorted(name for name, vendor in vendors.items() if vendor.problem() is None) or sorted(vendors)


def choose(wanted: str | None = None) -> Vendor:
    """The vendor to use: `wanted` or DIPU_DEVICE (a name or a path), else the best available one."""
    wanted = DEVICE.get() if wanted is None else wanted
    if wanted and (os.sep in wanted or wanted.endswith(".so")):
        return _by_path(wanted)
    vendors = installed()
    if wanted:
        return _by_name(wanted, vendors)
    candidates = [v for v in vendors.values() if v.problem() is None]
    if not candidates:
        reasons = (
            "; ".join(f"{name}: {v.problem()}" for name, v in sorted(vendors.items())) or "none is installed"
        )
        raise VendorError(
            f"no vendor can be used ({reasons}). Install one, or set {DEVICE.name} to a name or a path."
        )
    return max(candidates, key=lambda v: v.priority)


def _by_path(wanted: str) -> Vendor:
    path = Path(wanted)
    if not path.is_file():
        raise VendorError(
            f"{DEVICE.name}={wanted!r} is a path, but there is no such file. Give the path of a vendor library or a name."
        )
    return Vendor(name=path.stem, library=path.resolve())


def _by_name(wanted: str, vendors: dict[str, Vendor]) -> Vendor:
    if wanted not in vendors:
        names = ", ".join(usable()) or "none"
        raise VendorError(
            f"{DEVICE.name}={wanted!r} names no installed vendor; installed are: {names}. "
            f"Set it to one of these, to the path of a library, or unset it."
        )
    problem = vendors[wanted].problem()
    if problem:
        raise VendorError(f"the vendor {wanted!r} cannot be used: {problem}")
    return vendors[wanted]
