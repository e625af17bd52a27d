"""What a module is called: its path in the model, the same with and without wrappers around it."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

__all__ = ["ModelNames", "is_compiled", "is_wrapper", "own_weights", "unwrapped"]

# Modules that stand around another one: not part of the model a person knows.
_COMPILED = "OptimizedModule"
_WRAPPERS = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "CheckpointWrapper",
    _COMPILED,
)


class ModelNames:
    """The names of models and the paths of the modules in them. A model is a module that is called outside of others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._labels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._paths: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()

    def of(self, stack: list[torch.nn.Module]) -> tuple[str, str]:
        """The model's name and the path of the innermost module; the path of the model itself is empty."""
        root, module = unwrapped(stack[0]), unwrapped(stack[-1])
        path = self._path(root, module)
        if path is None:  # kept where torch does not see it, in a list
            paths = (self._path(root, unwrapped(other)) for other in reversed(stack[:-1]))
            above = next(filter(None, paths), "")
            path = f"{above}.{type(module).__name__}".lstrip(".")
        return self._label(root), path

    def _path(self, root: torch.nn.Module, module: torch.nn.Module) -> str | None:
        paths = self._paths.get(root)
        if paths is None or id(module) not in paths:
            paths = self._paths[root] = _paths(root)
        return paths.get(id(module))

    def _label(self, root: torch.nn.Module) -> str:
        label = self._labels.get(root)
        if label is None:
            kind = type(root).__name__
            with self._lock:
                same = sum(other.partition("#")[0] == kind for other in self._labels.values())
                label = self._labels[root] = f"{kind}#{same + 1}" if same else kind
        return label


def is_wrapper(module: torch.nn.Module) -> bool:
    """Whether a module only stands around another one."""
    return type(module).__name__ in _WRAPPERS and len(module._modules) == 1


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether a module is what torch.compile made of another one."""
    return type(module).__name__ == _COMPILED


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside all wrappers."""
    while is_wrapper(module):
        module = next(child for child in module._modules.values() if child is not None)
    return module


def own_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of the module itself, not of those inside it."""
    return dict(unwrapped(module).named_parameters(recurse=False))


def _paths(root: torch.nn.Module) -> dict[int, str]:
    """The path of every module below, by id; the names of wrappers left out; of a module that is there twice, the first."""
    found: dict[int, str] = {}
    pending = [("", root)]
    while pending:
        path, module = pending.pop()
        if id(module) in found:
            continue
        found[id(module)] = path
        for name, child in reversed(module._modules.items()):
            if child is not None:
                pending.append((path if is_wrapper(module) else f"{path}.{name}".lstrip("."), child))
    return found
