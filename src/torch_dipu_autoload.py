"""Registers the device `dipu` when torch is imported (entry point `torch.backends`).

Plain `import torch` must find the device without mapping CUDA names onto it, and a later `import torch_dipu` must still do
so, although Python runs a package's `__init__` once. So the package is imported here, told so by `in_progress`, and taken
out of `sys.modules` again: a later import runs `__init__` once more, which hands out `package` (docs/decisions/002).
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from types import ModuleType

from dicore.settings import declarations

_PACKAGE = "torch_dipu"

in_progress = False
"""Whether torch is importing the package, and not a user."""
package: ModuleType | None = None
"""The package, once torch has imported it."""


def asked_for() -> bool:
    """Whether the environment names the device."""
    return declarations("diopi")["DIPU_DEVICE"].is_set() or _framework() in ("dipu", _PACKAGE)


def _framework() -> str:
    """The one that the environment names for ditorch."""
    return declarations("_ditorch")["DITORCH_DEVICE"].text().lower()


def privateuse1_is_free() -> bool:
    """Whether torch's one dispatch key for a device from outside is to be had, and no other package wants it.

    A second registration raises, and it would do so inside `import torch`. So a device that the environment names
    goes first, and of two packages that register themselves neither order may decide: ditorch chooses.
    """
    import torch

    if torch._C._get_privateuse1_backend_name() != "privateuseone":  # private, but the only way to ask
        return False
    if asked_for():
        return True
    if _framework():
        return False
    return all(point.name == "dipu" for point in entry_points(group="torch.backends"))


def another_accelerator() -> bool:
    """Whether torch has an accelerator with a device without us; asking starts nothing.

    torch takes a registered PrivateUse1 device for the accelerator of the process, before any other. Autograd then
    looks for streams of that one only, and backward on the other fails.
    """
    import torch

    other = torch.accelerator.current_accelerator()
    return other is not None and torch.get_device_module(other).device_count() > 0


def register() -> None:
    """Called by torch at the end of its import."""
    global in_progress, package
    # In sys.modules: the user imports torch_dipu, which imported torch. It registers the device itself.
    if _PACKAGE in sys.modules or not privateuse1_is_free():
        return
    if not asked_for() and another_accelerator():
        return
    in_progress = True
    try:
        package = importlib.import_module(_PACKAGE)
    except ImportError:  # not built: `import torch` must work all the same; `dipu doctor` tells
        package = None
    finally:
        in_progress = False
        sys.modules.pop(_PACKAGE, None)
