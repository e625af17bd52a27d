"""Registers the device `dipu` when torch is imported (entry point `torch.backends`).

Plain `import torch` must find the device without mapping CUDA names onto it, and a later `import torch_dipu` must still do
so. Importing anything below `torch_dipu` runs that package's `__init__`, which applies the mapping; so the device is
registered through a stand-in for the package that disappears again (docs/decisions/002).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from importlib.metadata import entry_points

_PACKAGE = "torch_dipu"


def asked_for() -> bool:
    """Whether the environment names the device."""
    return bool(os.environ.get("DIPU_DEVICE")) or os.environ.get("DITORCH_DEVICE", "").strip().lower() in {
        "dipu",
        _PACKAGE,
    }


def place_is_free() -> bool:
    """Whether torch's one place for a device from outside is to be had, and no other package wants it.

    A second registration raises, and it would do so inside `import torch`. So a device that the environment names
    goes first, and of two packages that register themselves neither order may decide: ditorch chooses.
    """
    import torch

    if torch._C._get_privateuse1_backend_name() != "privateuseone":  # private, but the only way to ask
        return False
    if asked_for():
        return True
    if os.environ.get("DITORCH_DEVICE", "").strip():
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
    if (
        _PACKAGE in sys.modules
    ):  # the user imports torch_dipu, which imported torch: it registers the device itself
        return
    if not place_is_free() or (not asked_for() and another_accelerator()):
        return
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        return
    stand_in = types.ModuleType(_PACKAGE)
    stand_in.__path__ = list(spec.submodule_search_locations)
    stand_in.__spec__ = spec
    sys.modules[_PACKAGE] = stand_in
    try:
        importlib.import_module(f"{_PACKAGE}.registration").register()
    except ImportError:  # not built: `import torch` must work all the same; `dipu doctor` tells
        for name in [n for n in sys.modules if n.startswith(f"{_PACKAGE}.")]:
            del sys.modules[name]
    finally:
        del sys.modules[_PACKAGE]
