"""The frameworks that ditorch can use, one file each.

Files in this folder are found by looking, so a new framework is a new file and no list to edit.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from _ditorch.adapters.base import Adapter, Availability

__all__ = ["Adapter", "Availability", "all_adapters"]


@functools.cache
def all_adapters() -> tuple[Adapter, ...]:
    """Every adapter, the preferred ones first."""
    found: list[Adapter] = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        adapter = getattr(module, "ADAPTER", None)
        if isinstance(adapter, Adapter):
            found.append(adapter)
    return tuple(sorted(found, key=lambda adapter: (adapter.priority, adapter.name)))
