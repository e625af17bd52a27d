"""The names of `torch.cuda` that have no counterpart, and why.

A program that uses one must hear at that call what is missing, not fail later with a message about a
driver. The reasons are data: a device module that offers the name is used instead, whatever this table
says.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from _ditorch.mapping.patches import Patches

__all__ = [
    "REFUSED_SUBMODULES",
    "NotMapped",
    "NotMappedAttribute",
    "explain_early_imports",
    "explain_missing",
    "placeholder",
    "reason_for",
]


class NotMapped(NotImplementedError):
    """A function of `torch.cuda` was called that the mapped device does not offer."""


class NotMappedAttribute(NotMapped, AttributeError):
    """The same for an attribute: `hasattr` and `getattr` with a default still work."""


# Names of torch.cuda -> why they cannot be offered.
_REASONS: dict[str, str] = {
    "CUDAGraph graph graph_pool_handle make_graphed_callables": (
        "work cannot be captured and replayed on this device; run the function eagerly or use torch.compile"
    ),
    "MemPool use_mem_pool": "the device's allocator has no private pools; leave the pool out",
    "CUDAPluggableAllocator change_current_allocator caching_allocator_disabled caching_allocator_enable "
    "memory._get_current_allocator memory._set_allocator_settings": (
        "the device's allocator belongs to its own runtime; allocate tensors instead"
    ),
    "clock_rate list_gpu_processes memory_usage power_draw temperature utilization": (
        "it is read from the driver's management library, which describes cuda devices only"
    ),
    "check_error cudaStatus cudart current_blas_handle current_solver_handle": (
        "it returns a handle of a cuda library, and no such library is used"
    ),
    "host_memory_stats host_memory_stats_as_nested_dict reset_accumulated_host_memory_stats "
    "reset_peak_host_memory_stats": (
        "the device does not count pinned host memory; its device memory is in torch.cuda.memory_stats()"
    ),
    "ExternalStream get_stream_from_external": "a stream made by another runtime cannot be adopted",
    "GreenContext": "a device cannot be divided into partitions of its processors",
    "set_sync_debug_mode": "the device does not report synchronisations",
    "_sleep": "the device has no operation that only takes time",
    "memory._record_memory_history": (
        "the device's allocator keeps no history; torch.cuda.memory._snapshot() shows what is held now"
    ),
    "profiler.start profiler.stop": (
        "there is no external profiler to start or stop; use torch.profiler.profile"
    ),
    "nccl.version nccl.unique_id nccl.init_rank": (
        "nccl is not used; collectives run over the device's own backend, see torch.distributed"
    ),
}
_REASON_OF = {name: reason for names, reason in _REASONS.items() for name in names.split()}

# Submodules of torch.cuda of which nothing can be offered.
REFUSED_SUBMODULES: dict[str, str] = {
    "gds": "files are read through host memory: torch.load(..., mmap=True) is the quickest way",
    "jiterator": "kernels are given as CUDA C++, which this device cannot compile; use torch.compile",
    "tunable": "kernels are not chosen by torch on this device, so there is nothing to tune",
}

# torch makes such a kernel anywhere and refuses when it is called; PyTorch's own operator database makes some at import.
_MAKERS = frozenset(("jiterator._create_jit_fn", "jiterator._create_multi_output_jit_fn"))


def reason_for(name: str, device_type: str) -> str:
    """One sentence for the error message of `torch.cuda.<name>`."""
    submodule = name.partition(".")[0]
    unknown = f"torch.{device_type} offers no function of that name"
    return _REASON_OF.get(name) or REFUSED_SUBMODULES.get(submodule) or unknown


def placeholder(name: str, original: Any, device_type: str) -> Any:
    """What to put in place of `torch.cuda.<name>`: a class for a class, so that isinstance still works.

    `name` may have dots: 'profiler.start'.
    """
    message = f"torch.cuda.{name} is not available on '{device_type}': {reason_for(name, device_type)}."

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotMapped(message)

    *module, leaf = f"torch.cuda.{name}".split(".")
    if name in _MAKERS:
        return lambda *args, **kwargs: refuse
    if isinstance(original, type):
        return type(leaf, (), {"__new__": refuse, "__module__": ".".join(module), "__doc__": message})
    refuse.__name__ = refuse.__qualname__ = leaf
    refuse.__module__ = ".".join(module)
    refuse.__doc__ = message
    return refuse


def explain_missing(module: ModuleType, reason: Callable[[str], str]) -> Callable[[str], Any]:
    """A `__getattr__` for the module: names that it lacks stay missing, those with a reason say why."""

    def __getattr__(name: str) -> Any:
        text = f"module {module.__name__!r} has no attribute {name!r}"
        if why := reason(name):
            raise NotMappedAttribute(f"{text}. {why}")
        raise AttributeError(text)

    return __getattr__


# -- functions of torch.cuda that a program took by name before ditorch was imported -----------------------------

_BINDING = "_cuda_"
_IMPORTED_EARLY = (
    "A function of torch.cuda that was imported by name before ditorch is not mapped. "
    "Import ditorch first, or call the function as torch.cuda.<name>"
)


def explain_early_imports(patches: Patches) -> None:
    """Let `torch._C` explain its missing bindings of cuda; they stay missing for hasattr.

    `from torch.cuda import synchronize` holds torch's own function, which nothing can replace afterwards. It ends
    in a binding that a torch without cuda does not have, and an AttributeError about `torch._C` tells nobody what
    to do.
    """
    explained = explain_missing(torch._C, lambda name: _IMPORTED_EARLY if name.startswith(_BINDING) else "")
    patches.set(torch._C, "__getattr__", explained)
