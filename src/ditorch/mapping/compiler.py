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
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ditorch.mapping.patches import Patches
from ditorch.mapping.target import Target

__all__ = ["CompilerBridge"]

_COMPILER = "torch._dynamo"
# Answers that cannot change while a compiled function lives, so the compiler may read them once. The others
# of torch's own list are taken over through the originals.
_CONSTANT_QUESTIONS = ("device_count",)


class CompilerBridge:
    """Brings the compiler and one set of patches together, in whichever order they come."""

    def __init__(self, patches: Patches, target: Target) -> None:
        self._patches = patches
        self._target = target
        self._taught = False
        patches.insert(sys.meta_path, _ImportHook(self), lambda entries: 0)

    def before_install(self) -> None:
        """To be called each time before the patches are installed."""
        if _COMPILER in sys.modules:
            _build_rules()
            self._teach()

    def import_compiler(self, loader: Any, module: ModuleType) -> None:
        """Run the compiler's import with torch as it was."""
        with self._patches.suspended():
            loader.exec_module(module)
            _build_rules()
        self._teach()

    def _teach(self) -> None:
        if not self._taught:
            self._taught = True
            _teach_constant_questions(self._patches)
            _teach_is_cuda(self._patches, self._target)


def _build_rules() -> None:
    """Fill the compiler's tables from torch's names as they are at this moment."""
    from torch._dynamo import trace_rules

    trace_rules.get_torch_obj_rule_map()


class _ImportHook(importlib.abc.MetaPathFinder):
    """Notices the import of the compiler, whoever asks for it."""

    def __init__(self, bridge: CompilerBridge) -> None:
        self._bridge = bridge

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _COMPILER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _PausingLoader(spec.loader, self._bridge)
        return spec


class _PausingLoader(importlib.abc.Loader):
    """The compiler's own loader, run with the patches taken back."""

    def __init__(self, loader: Any, bridge: CompilerBridge) -> None:
        self._loader = loader
        self._bridge = bridge

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Leave no trace: inspect and pkgutil ask the loader for sources and data.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._bridge.import_compiler(self._loader, module)


def _teach_constant_questions(patches: Patches) -> None:
    """`torch.cuda.is_available()` in a compiled function is answered at compile time, as it is for cuda."""
    import torch
    from torch._dynamo import trace_rules
    from torch._dynamo.variables import torch as torch_variables

    rules = trace_rules.get_torch_obj_rule_map()
    folded: Any = torch_variables.constant_fold_functions
    guarded: Any = torch_variables.constant_fold_functions_need_guards
    for patch in list(patches.attributes()):
        if patch.owner is not torch.cuda or not callable(patch.replacement):
            continue
        if patch.original in folded or patch.name in _CONSTANT_QUESTIONS:
            patches.set_item(folded, patch.replacement, None)
            patches.set_item(rules, patch.replacement, torch_variables.TorchInGraphFunctionVariable)
        if patch.original in guarded:
            # The answer may change (current_device): compiled code asks again and is recompiled if it has.
            patches.set_item(guarded, patch.replacement, None)


def _teach_is_cuda(patches: Patches, target: Target) -> None:
    """The compiler answers `x.is_cuda` by itself, from the device it has recorded."""
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.tensor import TensorVariable

    def method_attr_is_cuda(self: Any, tx: Any) -> Any:
        if self.device is None:
            return None
        return VariableTracker.build(tx, self.device.type == target.device_type)

    patches.set(TensorVariable, "method_attr_is_cuda", method_attr_is_cuda)
