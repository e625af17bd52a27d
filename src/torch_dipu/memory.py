"""Device memory: what is held, what is cached, how much there is, and what the allocator did."""

from __future__ import annotations

import pickle
import sys
from typing import Any, Literal

import torch

from torch_dipu import _C
from torch_dipu.device_index import Device, device_index
from torch_dipu.memory_table import table

__all__ = [
    "empty_cache", "get_per_process_memory_fraction", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_reserved", "memory_snapshot", "memory_stats", "memory_summary",
    "reset_accumulated_memory_stats", "reset_peak_memory_stats", "set_per_process_memory_fraction",
]  # fmt: skip


def empty_cache() -> None:
    """Gives cached memory back to the vendor."""
    torch.accelerator.empty_cache()


def memory_stats(device: Device = None) -> dict[str, Any]:
    """The allocator's figures, with the names and the meaning that they have in torch.cuda.memory_stats."""
    index = device_index(device)
    _C.check_device(index)  # loads the vendor: without one there are no figures
    return dict(torch.accelerator.memory_stats(index))


def memory_allocated(device: Device = None) -> int:
    """Bytes held by tensors."""
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: Device = None) -> int:
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes taken from the vendor: held by tensors or cached."""
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: Device = None) -> int:
    return torch.accelerator.max_memory_reserved(device_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of the device."""
    return torch.accelerator.get_memory_info(device_index(device))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """The share of the device's memory this process may take; beyond it torch.OutOfMemoryError is raised."""
    _C.set_memory_fraction(device_index(device), float(fraction))


def get_per_process_memory_fraction(device: Device = None) -> float:
    return _C.memory_fraction(device_index(device))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The figures of `memory_stats` as a table."""
    index = device_index(device)
    return table(memory_stats(index), mem_get_info(index), f"dipu:{index}", abbreviated)


# ---- what is where, and what happened ----


def memory_snapshot(device: Device = None) -> list[dict[str, Any]]:
    """Every segment with its blocks, as torch.cuda describes them; of all devices unless one is given."""
    indices = range(_C.device_count()) if device is None else [device_index(device)]
    return [segment for index in indices for segment in _C.memory_segments(index)]


_TRACEBACKS_FOR = {None: 0, "state": 1, "alloc": 2, "all": 3}


def _record_memory_history(
    enabled: Literal["state", "all"] | bool | None = "all",
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python", "all"] = "python",
    max_entries: int = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Records what the allocator does and where in the program; `None` ends it. Arguments as in torch.cuda.

    Unlike there, frames of C++ are recorded on demand only (`stacks="all"`): naming them takes minutes.
    """
    if isinstance(enabled, bool):
        enabled = "all" if enabled else None
    if enabled not in (None, "state", "all"):
        raise ValueError(f"enabled={enabled!r}: expected None, 'state' or 'all'")
    if context not in _TRACEBACKS_FOR:
        raise ValueError(f"context={context!r}: expected None, 'state', 'alloc' or 'all'")
    if stacks not in ("python", "all"):
        raise ValueError(f"stacks={stacks!r}: expected 'python' or 'all'")
    _C.record_memory_history(
        enabled is not None,
        enabled == "all",
        _TRACEBACKS_FOR[context],
        stacks == "all",
        min(max_entries, sys.maxsize),
        list(skip_actions or ()),
        clear_history,
    )


def _snapshot(device: Device = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Segments and history of all devices, as PyTorch's viewer (torch.cuda._memory_viz) reads them."""
    return {
        "segments": memory_snapshot(),
        "device_traces": [_C.memory_events(index) for index in range(_C.device_count())],
        "allocator_settings": {"PYTORCH_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False},
        "external_annotations": [],
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Writes `_snapshot()` to a file: `dipu memory FILE` shows it, and so does https://pytorch.org/memory_viz."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


# ---- the memory checker ----


def _at_exit() -> None:
    """Before the interpreter ends: call sites get their names, and errors that nobody saw are shown."""
    _C.name_call_sites()
    _record_memory_history(None)
    if problems := _C.take_deferred_errors():
        print(
            f"dipu: {problems} (in clearing up; nothing was called afterwards that could raise it)",
            file=sys.stderr,
        )
