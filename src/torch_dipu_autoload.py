"""Registers the device `dipu` when torch is imported (entry point `torch.backends`).

Plain `import torch` must find the device without mapping CUDA names onto it, and a later `import torch_dipu` must still do
so. Importing anything below `torch_dipu` runs that package's `__init__`, which applies the mapping; so the device is
registered through a stand-in for the package that disappears again (docs/decisions/002).
"""

from __future__ import annotations

import importlib.util
import sys
import types

_PACKAGE = "torch_dipu"


def register() -> None:
    """Called by torch at the end of its import."""
    if (
        _PACKAGE in sys.modules
    ):  # the user imports torch_dipu, which imported torch: it registers the device itself
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
