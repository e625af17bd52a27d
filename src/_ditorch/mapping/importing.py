"""Taking part in the import of a module that may come at any time, whoever asks for it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

__all__ = ["ImportHook"]

_Load = Callable[[Any, ModuleType], None]


class ImportHook(importlib.abc.MetaPathFinder):
    """To be put first into `sys.meta_path`: `load(loader, module)` then runs in place of `loader.exec_module(module)`."""

    def __init__(self, modules: Collection[str], load: _Load) -> None:
        self._modules = modules
        self._load = load

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._load)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, load: _Load) -> None:
        self._loader = loader
        self._load = load

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Leave no trace: inspect and pkgutil ask the loader for sources and data.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._load(self._loader, module)
