"""Keeping `torch.compile` in step with the patches, without importing the compiler.

torch._dynamo takes a second to import and decides by identity what a function is: its tables must be filled
with torch's own functions. So if it comes after the patches, an import hook takes them back while it is
imported and its rules are built; if it is there already, the rules are built before the first patch.
Wrappers are then ordinary functions that it inlines, and what they call is what it knows.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target

__all__ = ["CompilerBridge", "ImportHook"]

_COMPILER = "torch._dynamo"


class CompilerBridge:
    """Brings the compiler and one set of patches together, in whichever order they come."""

    def __init__(self, patches: Patches, target: Target) -> None:
        self._patches = patches
        self._target = target
        self._taught = False
        patches.insert(sys.meta_path, ImportHook((_COMPILER,), self.import_compiler), lambda entries: 0)

    def before_install(self) -> None:
        """To be called each time before the patches are installed."""
        if _COMPILER in sys.modules:
            from _ditorch.mapping import compiler_rules

            compiler_rules.build_rules()
            self._teach()

    def import_compiler(self, loader: Any, module: ModuleType) -> None:
        """Run the compiler's import with torch as it was."""
        from _ditorch.mapping import compiler_rules

        with self._patches.suspended():
            loader.exec_module(module)
            compiler_rules.build_rules()
        self._teach()

    def _teach(self) -> None:
        if not self._taught:
            from _ditorch.mapping import compiler_rules

            self._taught = True
            compiler_rules.teach(self._patches, self._target)


# -- taking part in the import of a module that may come at any time, whoever asks for it ----------------------

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
