"""Attributes of C types, to which Python does not let one assign.

The dictionary of such a class can be reached all the same, and a change of it be told to the interpreter.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any

from _ditorch.mapping.patches import Patches

__all__ = ["set_attribute"]


def set_attribute(patches: Patches, kind: type, name: str, value: Any) -> None:
    """Note the change `kind.name = value`."""
    patches.set_item(_attributes_of(kind), name, value)
    patches.after_change(lambda: _forget_lookups(kind))


def _attributes_of(kind: type) -> dict[str, Any]:
    """The dictionary behind `kind.__dict__`: for a C type Python hands out a read-only view of it only."""
    found: dict[str, Any] = gc.get_referents(kind.__dict__)[0]
    return found


def _forget_lookups(kind: type) -> None:
    """Python remembers where it found an attribute; a change of the dictionary itself must be told to it."""
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
