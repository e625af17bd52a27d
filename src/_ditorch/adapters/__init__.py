"""The frameworks that ditorch can use, one file each.

Files in this folder are found by looking, so a new framework is a new file and no list to edit.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TypeGuard

from _ditorch.adapters.base import Adapter, Availability

__all__ = ["Adapter", "Availability", "all_adapters"]


@functools.cache
def all_adapters() -> tuple[Adapter, ...]:
    """Every adapter, the preferred ones first."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    kinds = {kind for module in modules for kind in vars(module).values() if _is_of_a_framework(kind)}
    return tuple(sorted((kind() for kind in kinds), key=lambda adapter: (adapter.priority, adapter.name)))


def _is_of_a_framework(kind: object) -> TypeGuard[type[Adapter]]:
    """The classes that others derive from have no name."""
    return isinstance(kind, type) and issubclass(kind, Adapter) and hasattr(kind, "name")
