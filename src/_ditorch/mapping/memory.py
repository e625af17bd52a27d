"""Device memory beyond the figures: blocks by address, and snapshots in the form that torch's viewers read."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target
from _ditorch.mapping.unmapped import placeholder

__all__ = ["apply", "derived", "snapshot_in_segments"]

_LARGE = 1 << 20
"""Where torch draws the line between its two pools; viewers show them apart."""


def derived(target: Target) -> dict[str, Callable[..., Any]]:
    """Names of `torch.cuda` that follow from what the device module has."""
    module = target.module

    def device_memory_used(device: Any = None) -> int:
        free, total = module.mem_get_info(target.translate(device))
        return total - free

    def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
        return _nested(module.memory_stats(target.translate(device)))

    def reset_peaks(device: Any = None) -> None:
        module.reset_peak_memory_stats(target.translate(device))

    return {
        **{function.__name__: function for function in _blocks_by_address(target)},
        "device_memory_used": device_memory_used,
        "get_allocator_backend": lambda: "native",
        "max_memory_cached": lambda device=None: module.max_memory_reserved(target.translate(device)),
        "memory_cached": lambda device=None: module.memory_reserved(target.translate(device)),
        "memory_stats_as_nested_dict": memory_stats_as_nested_dict,
        "reset_max_memory_allocated": reset_peaks,
        "reset_max_memory_cached": reset_peaks,
    }


def snapshot_in_segments(offered: Callable[..., Any], target: Target) -> Callable[..., Any]:
    """`torch.cuda.memory_snapshot` from the device's own: all devices, in torch's form."""

    def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
        return [
            _as_segment(found, index)
            for index in range(target.module.device_count())
            for found in offered(index)
        ]

    return memory_snapshot


def apply(patches: Patches, target: Target) -> None:
    """The private functions around snapshots that documents tell users to call."""
    module: Any = torch.cuda.memory
    own = getattr(target.module, "memory", None)
    if all(hasattr(own, name) for name in _OF_HISTORY):
        functions = [_given(getattr(own, name), target) for name in _OF_HISTORY]
    else:
        functions = [_recorder(target)]
        if hasattr(target.module, "memory_snapshot"):
            functions += _snapshots(target)
    for function in functions:
        patches.wrap(module, function)
    for name in ("_get_current_allocator", "_set_allocator_settings"):
        if hasattr(module, name):
            refused = placeholder(f"memory.{name}", getattr(module, name), target.device_type)
            patches.set(module, name, refused)


_OF_HISTORY = ("_record_memory_history", "_snapshot", "_dump_snapshot")


def _given(offered: Callable[..., Any], target: Target) -> Callable[..., Any]:
    """A function of the device's own, given devices as it knows them."""

    @functools.wraps(offered)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = target.translate(kwargs["device"])
        return offered(*args, **kwargs)

    return call


def _recorder(target: Target) -> Callable[..., Any]:
    name = "_record_memory_history"
    refuse = placeholder(f"memory.{name}", torch.cuda.memory._record_memory_history, target.device_type)

    def _record_memory_history(enabled: Any = "all", *args: Any, **kwargs: Any) -> None:
        if enabled:  # to stop what was never started is no mistake
            refuse()

    return _record_memory_history


def _snapshots(target: Target) -> list[Callable[..., Any]]:
    module = target.module
    memory_snapshot = snapshot_in_segments(module.memory_snapshot, target)

    def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
        traces: list[list[Any]] = [[] for _ in range(module.device_count())]
        return {"segments": memory_snapshot(), "device_traces": traces, "allocator_settings": {}}

    def _dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
        with open(filename, "wb") as file:
            pickle.dump(_snapshot(), file)

    return [_snapshot, _dump_snapshot]


def _as_segment(found: dict[str, Any], device: int) -> dict[str, Any]:
    """An entry of the device's snapshot as torch describes a segment; one that is a segment stays as it is.

    A device that lists single blocks has taken each from its driver by itself, so each is a segment.
    """
    if "blocks" in found:
        return found
    size = found["size"]
    in_use = size if found["state"].startswith("active") else 0
    block = {"requested_size": size, "frames": [], **found}
    return {
        "device": device,
        "address": found["address"],
        "total_size": size,
        "allocated_size": in_use,
        "active_size": in_use,
        "requested_size": in_use,
        "stream": found.get("stream", 0),
        "segment_type": "large" if size > _LARGE else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [block],
    }


def _blocks_by_address(target: Target) -> tuple[Callable[..., Any], ...]:
    """Memory taken by address: each address keeps the storage that it came from."""
    module, lock = target.module, threading.Lock()
    storages: dict[int, torch.UntypedStorage] = {}

    def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
        device = module.current_device() if device is None else target.translate(device)
        with module.device(device), module.stream(stream if isinstance(stream, torch.Stream) else None):
            tensor = torch.empty(size, dtype=torch.uint8, device=target.device(module.current_device()))
        address = tensor.data_ptr()
        with lock:
            storages[address] = tensor.untyped_storage()
        return address

    def caching_allocator_delete(mem_ptr: int) -> None:
        with lock:
            storage = storages.pop(mem_ptr, None)
        if storage is None:
            raise ValueError(
                f"{mem_ptr:#x} is no address that torch.cuda.caching_allocator_alloc gave and that is still "
                "held; pass the number that it returned, once"
            )

    return caching_allocator_alloc, caching_allocator_delete


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    """{'a.b': 1} as {'a': {'b': 1}}, the shape that torch documents."""
    nested: dict[str, Any] = {}
    for dotted, value in flat.items():
        *parents, leaf = dotted.split(".")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})
        level[leaf] = value
    return nested
