"""Keeping `torch.compile` in step with the patches, without importing the compiler.

torch._dynamo takes a second to import and decides by identity what a function is: its tables must be filled
with torch's own functions. So if it comes after the patches, an import hook takes them back while it is
imported and its rules are built; if it is there already, the rules are built before the first patch.
Wrappers are then ordinary functions that it inlines, and what they call is what it knows.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from _ditorch.mapping.importing import ImportHook
from _ditorch.mapping.patches import Patches
from _ditorch.mapping.target import Target

__all__ = ["CompilerBridge"]

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
