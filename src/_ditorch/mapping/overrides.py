"""Keeping torch's own index of functions right: `torch.overrides.resolve_name` and its relatives.

Function modes are given sometimes the original (factories) and sometimes the replacement (methods of
Tensor). Both must have a name, and the caches that hold the names must not outlive the patches.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.overrides

from _ditorch.mapping.patches import MISSING, Patches

__all__ = ["apply"]

_CACHED = (
    "_get_overridable_functions",
    "get_ignored_functions",
    "get_overridable_functions",
    "get_testing_overrides",
    "get_tensor_methods",
)


def apply(patches: Patches) -> None:
    original = torch.overrides._get_overridable_functions

    @functools.cache
    def _get_overridable_functions() -> tuple[Any, dict[Any, str]]:
        functions, names = original()
        names = dict(names)
        for patch in patches.attributes():
            if patch.original is not MISSING and _hashable(patch.original) and patch.original not in names:
                name = names.get(patch.replacement) if _hashable(patch.replacement) else None
                if name is not None:
                    names[patch.original] = name
        return functions, names

    originals: list[Any] = [getattr(torch.overrides, name, None) for name in _CACHED]
    caches = [
        function for function in (*originals, _get_overridable_functions) if hasattr(function, "cache_clear")
    ]

    def clear() -> None:
        for cache in caches:
            cache.cache_clear()

    patches.set(torch.overrides, "_get_overridable_functions", _get_overridable_functions)
    patches.after_change(clear)


def _hashable(value: Any) -> bool:
    return getattr(type(value), "__hash__", None) is not None
