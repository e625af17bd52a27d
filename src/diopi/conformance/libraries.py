"""The library that a run checks, as a user names it."""

from __future__ import annotations

import os
from pathlib import Path

from diopi.conformance.selection import SelectionError
from diopi.library.wording import nearest
from diopi.vendors import choose, installed


def vendor_library(name: str, flag: str) -> Path:
    """The library of an installed vendor; SelectionError names the flag that asked for it."""
    vendors = installed()
    if os.sep in name or name.endswith(".so"):
        raise SelectionError(f"{flag} {name}: this is a path; give a file with --library")
    if name not in vendors:
        near = nearest(name, vendors, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        known = ", ".join(sorted(vendors)) or "none"
        raise SelectionError(f"{flag} {name}: no such vendor is installed; installed: {known}{hint}")
    if problem := vendors[name].problem():
        raise SelectionError(f"{flag} {name}: the vendor cannot be used: {problem}")
    return vendors[name].library


def default_library() -> tuple[Path, tuple[str, str]]:
    """The library of DIPU_DEVICE or of the best installed vendor, and the flag and value that name it."""
    vendor = choose(None)
    if vendor.name in installed():
        return vendor.library, ("--vendor", vendor.name)
    return vendor.library, ("--library", str(vendor.library))
