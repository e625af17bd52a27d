"""Run PyTorch programs written for CUDA on another device.

    import torch
    import ditorch

The import chooses a framework (`DITORCH_DEVICE`, or what is installed and has a device), says once which,
and maps the names of cuda onto its device. `ditorch.disable()` takes everything back, `ditorch.enable()`
applies it again; `DITORCH_DISABLE_MOCK=1` leaves torch alone from the start. `DITORCH_DEVICE=none` chooses no
framework: for libraries that use parts of this package.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ditorch.mapping import NotMapped
from ditorch.selection import Choice, UnknownDeviceError
from ditorch.session import Session, of_process

__all__ = [
    "NotMapped",
    "UnknownDeviceError",
    "__version__",
    "disable",
    "enable",
    "enabled",
    "framework",
    "start",
]

__version__ = "0.1.0"

framework: str = ""
"""Name and version of the chosen framework: 'torch_dipu:0.1.0 (host)'; empty if none was chosen."""

_OWN_PROGRAMS = ("ditorch", "dipu")
_OWN_MODULES = ("ditorch", "torch_dipu.commands")

_session: Session = of_process()


def start(choice: Choice | None = None) -> str:
    """What the import does, without the printed line; for programs that start ditorch when they need it."""
    global framework
    framework = _session.start(choice, quiet=True)
    return framework


def enable() -> None:
    """Map the names of cuda onto the chosen device; does nothing if they are mapped."""
    global framework
    _session.enable()
    framework = _session.framework


def disable() -> None:
    """Leave torch exactly as it was; does nothing if nothing is mapped."""
    _session.disable()


def enabled() -> bool:
    """Whether the names of cuda are mapped at this moment."""
    return _session.enabled


def _imported_by_own_program() -> bool:
    """Programs of this house start the session themselves: they must be able to report why it fails."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    if program != "-m":
        return program in _OWN_PROGRAMS
    modules = [
        after for before, after in zip(sys.orig_argv, sys.orig_argv[1:], strict=False) if before == "-m"
    ]
    return any(module.startswith(_OWN_MODULES) for module in modules)


if not _imported_by_own_program():
    framework = _session.start()
