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


_GRAPHS = "work cannot be captured and replayed on this device; run the function eagerly or use torch.compile"
_POOLS = "the device's allocator has no private pools; leave the pool out"
_ALLOCATOR = "the device's allocator belongs to its own runtime; allocate tensors instead"
_TELEMETRY = "it is read from the driver's management library, which describes cuda devices only"
_HANDLES = "it returns a handle of a cuda library, and no such library is used"
_HOST_STATS = (
    "the device does not count pinned host memory; its device memory is in torch.cuda.memory_stats()"
)
_STREAMS = "a stream made by another runtime cannot be adopted"
_HISTORY = "the device's allocator keeps no history; torch.cuda.memory._snapshot() shows what is held now"
_COLLECTOR = "there is no external profiler to start or stop; use torch.profiler.profile"
_COMMUNICATOR = "nccl is not used; collectives run over the device's own backend, see torch.distributed"

_REASONS: dict[str, str] = {
    "CUDAGraph": _GRAPHS,
    "graph": _GRAPHS,
    "graph_pool_handle": _GRAPHS,
    "make_graphed_callables": _GRAPHS,
    "MemPool": _POOLS,
    "use_mem_pool": _POOLS,
    "CUDAPluggableAllocator": _ALLOCATOR,
    "change_current_allocator": _ALLOCATOR,
    "caching_allocator_disabled": _ALLOCATOR,
    "caching_allocator_enable": _ALLOCATOR,
    "clock_rate": _TELEMETRY,
    "list_gpu_processes": _TELEMETRY,
    "memory_usage": _TELEMETRY,
    "power_draw": _TELEMETRY,
    "temperature": _TELEMETRY,
    "utilization": _TELEMETRY,
    "check_error": _HANDLES,
    "cudaStatus": _HANDLES,
    "cudart": _HANDLES,
    "current_blas_handle": _HANDLES,
    "current_solver_handle": _HANDLES,
    "host_memory_stats": _HOST_STATS,
    "host_memory_stats_as_nested_dict": _HOST_STATS,
    "reset_accumulated_host_memory_stats": _HOST_STATS,
    "reset_peak_host_memory_stats": _HOST_STATS,
    "ExternalStream": _STREAMS,
    "get_stream_from_external": _STREAMS,
    "GreenContext": "a device cannot be divided into partitions of its processors",
    "set_sync_debug_mode": "the device does not report synchronisations",
    "_sleep": "the device has no operation that only takes time",
    "memory._record_memory_history": _HISTORY,
    "memory._get_current_allocator": _ALLOCATOR,
    "memory._set_allocator_settings": _ALLOCATOR,
    "profiler.start": _COLLECTOR,
    "profiler.stop": _COLLECTOR,
    "nccl.version": _COMMUNICATOR,
    "nccl.unique_id": _COMMUNICATOR,
    "nccl.init_rank": _COMMUNICATOR,
}

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
    return _REASONS.get(name) or REFUSED_SUBMODULES.get(submodule) or unknown


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
