"""Device memory: what is held, what is cached, how much there is."""

from __future__ import annotations

from typing import Any

import torch

from torch_dipu import _C
from torch_dipu.place import Place, index_of


def empty_cache() -> None:
    """Gives cached memory back to the vendor."""
    torch.accelerator.empty_cache()


def memory_stats(device: Place = None) -> dict[str, Any]:
    return dict(torch.accelerator.memory_stats(index_of(device)))


def memory_allocated(device: Place = None) -> int:
    """Bytes held by tensors."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Place = None) -> int:
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Place = None) -> int:
    """Bytes taken from the vendor: held by tensors or cached."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Place = None) -> int:
    return torch.accelerator.max_memory_reserved(index_of(device))


def reset_peak_memory_stats(device: Place = None) -> None:
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Place = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Place = None) -> tuple[int, int]:
    """Free and total bytes of the device."""
    return torch.accelerator.get_memory_info(index_of(device))


def memory_snapshot(device: Place = None) -> list[dict[str, Any]]:
    """Every block of device memory: address, size, stream, state."""
    return _C.memory_snapshot(index_of(device))


def set_per_process_memory_fraction(fraction: float, device: Place = None) -> None:
    """The share of the device's memory this process may take; beyond it torch.OutOfMemoryError is raised."""
    _C.set_memory_fraction(index_of(device), float(fraction))


def get_per_process_memory_fraction(device: Place = None) -> float:
    return _C.memory_fraction(index_of(device))


def memory_summary(device: Place = None, abbreviated: bool = False) -> str:
    """The figures above as a small table."""
    index = index_of(device)
    free, total = mem_get_info(index)
    rows = {
        "held by tensors": memory_allocated(index),
        "held by tensors, peak": max_memory_allocated(index),
        "taken from the device": memory_reserved(index),
        "taken from the device, peak": max_memory_reserved(index),
        "free on the device": free,
        "total on the device": total,
    }
    lines = [f"| {name:<28} | {value / 2**20:>12.2f} MiB |" for name, value in rows.items()]
    rule = "|" + "-" * 30 + "|" + "-" * 18 + "|"
    return "\n".join([f"| {f'memory of dipu:{index}':<28} | {'':>16} |", rule, *lines])
