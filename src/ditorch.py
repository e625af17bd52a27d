"""Run PyTorch programs written for CUDA on another device.

    import torch
    import ditorch

The import chooses a framework (`DITORCH_DEVICE`, or what is installed and has a device), says once which,
and maps the names of cuda onto its device. `ditorch.disable()` takes everything back, `ditorch.enable()`
applies it again; `DITORCH_DISABLE_MOCK=1` leaves torch alone from the start; `DITORCH_DEVICE=none` chooses no
framework at all. `python -m ditorch` is the program `ditorch`.

This file is the switch and nothing else. What it turns on is in the package `_ditorch`, whose modules do nothing
when they are imported (docs/decisions/018).
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from _ditorch.cli import app

    app()
    sys.exit()

from _ditorch import __version__, mapping
from _ditorch.mapping import NotMapped
from _ditorch.selection import Choice, UnknownDeviceError
from _ditorch.session import of_process

__all__ = [
    "NotMapped",
    "UnknownDeviceError",
    "__version__",
    "disable",
    "enable",
    "enabled",
    "framework",
    "mapping",
    "start",
]

framework: str
"""Name and version of the chosen framework: 'torch_dipu:0.1.0 (host)'; empty if none was chosen."""


def __getattr__(name: str) -> str:
    if name == "framework":
        return of_process().framework
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def start(choice: Choice | None = None) -> str:
    """What the import does, without the printed line; for programs that start ditorch when they need it."""
    return of_process().start(choice, quiet=True)


def enable() -> None:
    """Map the names of cuda onto the chosen device; does nothing if they are mapped."""
    of_process().enable()


def disable() -> None:
    """Leave torch exactly as it was; does nothing if nothing is mapped."""
    of_process().disable()


def enabled() -> bool:
    """Whether the names of cuda are mapped at this moment."""
    return of_process().enabled


if __name__ == "ditorch":  # and not '__mp_main__', as a process spawned by `python -m ditorch` calls it
    of_process().start()
