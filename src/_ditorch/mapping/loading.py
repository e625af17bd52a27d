"""Checkpoints: `torch.load(map_location='cuda')`, and files whose tensors were saved on cuda."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.serialization

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target

__all__ = ["apply"]

# torch asks its own handler of 'cuda' locations at 20; ours must answer before it.
_PRIORITY = 15


def apply(patches: Patches, target: Target) -> None:
    _load(patches, target)
    _restore_location(patches, target)


def _load(patches: Patches, target: Target) -> None:
    original = torch.load

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(f, _translate_location(map_location, target), *args, **kwargs)

    patches.wrap(torch.serialization, load, also=[torch])


def _translate_location(location: Any, target: Target) -> Any:
    if isinstance(location, FunctionType):
        return _told_cuda(location, target.device_type)
    if not isinstance(location, dict):
        return target.translate(location)
    # A file may carry either name: cuda if it comes from a cuda machine, the device's own if it was saved
    # here.
    translated = {target.translate(key): target.translate(value) for key, value in location.items()}
    return {key: target.translate(value) for key, value in location.items()} | translated


def _told_cuda(map_location: Callable[[Any, str], Any], device_type: str) -> Callable[[Any, str], Any]:
    """A function that decides by the name in the file knows one name; a file saved here carries the device's own."""

    def told(storage: Any, tag: str) -> Any:
        own = tag == device_type or tag.startswith(f"{device_type}:")
        return map_location(storage, f"cuda{tag[len(device_type) :]}" if own else tag)

    return told


def _restore_location(patches: Patches, target: Target) -> None:
    def tag(storage: Any) -> None:
        return None

    def restore(storage: Any, location: str) -> Any:
        translated = target.translate(location)
        if translated == location:
            return None
        return torch.serialization.default_restore_location(storage, translated)

    entry = (_PRIORITY, tag, restore)

    def position(registry: list[Any]) -> int:
        return sum(1 for priority, *_ in registry if priority <= _PRIORITY)

    patches.insert(torch.serialization._package_registry, entry, position)
