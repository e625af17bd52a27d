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

import torch

from _ditorch.mapping import device_names
from _ditorch.mapping.cuda_module import CudaProperties
from _ditorch.mapping.legacy_types import LegacyTensorType
from _ditorch.mapping.patches import AttributePatch, Patches
from _ditorch.mapping.translation import RealDevice, Target

__all__ = ["CompilerBridge", "ImportHook", "build_rules"]

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
            build_rules()
            self._teach()

    def import_compiler(self, loader: Any, module: ModuleType) -> None:
        """Run the compiler's import with torch as it was."""
        with self._patches.suspended():
            loader.exec_module(module)
            build_rules()
        self._teach()

    def _teach(self) -> None:
        if not self._taught:
            self._taught = True
            teach(self._patches, self._target)


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


# -- what the compiler is told of the mapped names, so that graphs stay whole ------------------------------------

# It keeps tables, keyed by torch's own objects: which function is a constant, which has a handler, which class is a stream.
# For each of cuda's objects that the mapping replaces, the replacement gets the entry of the original. All of this is
# private to torch.

# Answers that cannot change while a compiled function lives, so the compiler may read them once. The others
# of torch's own list are taken over through the originals.
_CONSTANT_QUESTIONS = frozenset(
    ("device_count", "get_arch_list", "get_device_capability", "get_device_name", "is_bf16_supported")
)
# Actions without an answer: they become calls in the graph, as cuda's do.
_ACTIONS = frozenset((
    "empty_cache", "init", "ipc_collect", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
    "reset_max_memory_cached", "reset_peak_memory_stats", "set_per_process_memory_fraction", "synchronize",
))  # fmt: skip


def build_rules() -> None:
    """Fill the compiler's tables from torch's names as they are at this moment."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
    from torch._dynamo.variables.user_defined import UserDefinedClassVariable

    trace_rules.get_torch_obj_rule_map()
    TorchInGraphFunctionVariable._get_handlers()
    UserDefinedClassVariable._in_graph_classes()


def teach(patches: Patches, target: Target) -> None:
    """Add the replacements to the compiler's tables; `build_rules` must have run with torch as it was."""
    replaced = [
        patch for patch in patches.attributes() if patch.owner is torch.cuda and callable(patch.replacement)
    ]
    _functions(patches, replaced)
    _classes(patches, replaced)
    _device_contexts(patches, replaced)
    _properties(patches)
    _tensor_attributes(patches, target)
    _device_names(patches, target)


def _functions(patches: Patches, replaced: list[AttributePatch]) -> None:
    """`torch.cuda.is_available()` is answered at compile time, `synchronize()` becomes part of the graph."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables import torch as torch_variables

    rules = trace_rules.get_torch_obj_rule_map()
    in_graph = torch_variables.TorchInGraphFunctionVariable
    folded: Any = torch_variables.constant_fold_functions
    guarded: Any = torch_variables.constant_fold_functions_need_guards
    handlers: Any = in_graph._get_handlers()
    for patch in replaced:
        if patch.original in folded or patch.name in _CONSTANT_QUESTIONS:
            patches.set_item(folded, patch.replacement, None)
            patches.set_item(rules, patch.replacement, in_graph)
        if patch.original in guarded:
            # The answer may change (current_device): compiled code asks again and is recompiled if it has.
            patches.set_item(guarded, patch.replacement, None)
        if patch.original in handlers:
            patches.set_item(handlers, patch.replacement, handlers[patch.original])
        if patch.original in handlers or patch.name in _ACTIONS:
            patches.set_item(rules, patch.replacement, in_graph)


def _classes(patches: Patches, replaced: list[AttributePatch]) -> None:
    """Streams, events and `torch.cuda.FloatTensor` are made by calls in the graph."""
    from torch._dynamo.variables import streams
    from torch._dynamo.variables.user_defined import UserDefinedClassVariable

    classes = UserDefinedClassVariable._in_graph_classes()
    for patch in replaced:
        if isinstance(patch.original, type) and patch.original in classes:
            patches.include(classes, patch.replacement)
    table: Any = getattr(streams, "_stream_fn_to_variable_cls", None)  # from torch 2.12 on
    for patch in replaced:
        if table is not None and patch.original in table:
            patches.set_item(table, patch.replacement, table[patch.original])


def _device_contexts(patches: Patches, replaced: list[AttributePatch]) -> None:
    """`with torch.cuda.device(1):`"""
    from torch._dynamo.variables import ctx_manager

    table: Any = getattr(ctx_manager, "_device_context_manager_map", None)
    if table is None:
        return  # before torch 2.12 the compiler looks the names up in torch.cuda when it needs them
    functions = {
        "_exchange_device": "_exchange_fn",
        "_maybe_exchange_device": "_maybe_exchange_fn",
        "_get_device_index": "_get_device_index_fn",
    }
    for patch in replaced:
        if patch.name == "device":
            patches.set_item(table, patch.replacement, ctx_manager.CUDADeviceVariable)
        elif patch.name in functions:
            replacement = staticmethod(patch.replacement)
            patches.set(ctx_manager.CUDADeviceVariable, functions[patch.name], replacement)


def _properties(patches: Patches) -> None:
    """`torch.cuda.get_device_properties(0).multi_processor_count` is a number in the graph."""
    from torch._dynamo import utils

    patches.include(utils.common_constant_types, CudaProperties)


def _tensor_attributes(patches: Patches, target: Target) -> None:
    """The compiler answers `x.is_cuda` and `x.type(torch.cuda.HalfTensor)` by itself."""
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.tensor import TensorVariable

    def method_attr_is_cuda(self: Any, tx: Any) -> Any:
        if self.device is None:
            return None
        return VariableTracker.build(tx, self.device.type == target.device_type)

    original = TensorVariable.method_type

    def method_type(self: Any, tx: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        wanted = dtype.as_python_constant() if dtype is not None and dtype.is_python_constant() else None
        if not isinstance(wanted, LegacyTensorType):
            return original(self, tx, dtype, non_blocking, **kwargs)
        device = VariableTracker.build(tx, target.device(target.module.current_device()))
        return self.call_method(tx, "to", [device, VariableTracker.build(tx, wanted.dtype)], {})

    patches.set(TensorVariable, "method_attr_is_cuda", method_attr_is_cuda)
    patches.set(TensorVariable, "method_type", method_type)


def _device_names(patches: Patches, target: Target) -> None:
    """`x.device.type` in a compiled function is what the same line reads without the compiler."""
    if not device_names.wanted():
        return
    from torch._dynamo.variables.constant import ConstantVariable

    original = ConstantVariable.const_getattr

    def const_getattr(self: Any, tx: Any, name: str) -> Any:
        if name == "type" and type(self.value) is RealDevice and self.value.type == target.device_type:
            # The line that is compiled decides, as the line that runs does elsewhere.
            module = tx.f_globals.get("__name__", "")
            if not device_names.knows_the_device(module, target):
                return device_names.SHOWN
        return original(self, tx, name)

    patches.set(ConstantVariable, "const_getattr", const_getattr)
