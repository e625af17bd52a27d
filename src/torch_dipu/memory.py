"""Device memory: what is held, what is cached, how much there is."""

from __future__ import annotations

from typing import Any

import torch

from torch_dipu import _C
from torch_dipu.device_index import Device, device_index


def empty_cache() -> None:
    """Gives cached memory back to the vendor."""
    torch.accelerator.empty_cache()


def memory_stats(device: Device = None) -> dict[str, Any]:
    return dict(torch.accelerator.memory_stats(device_index(device)))


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


def memory_snapshot(device: Device = None) -> list[dict[str, Any]]:
    """Every block of device memory: address, size, stream, state."""
    return _C.memory_snapshot(device_index(device))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """The share of the device's memory this process may take; beyond it torch.OutOfMemoryError is raised."""
    _C.set_memory_fraction(device_index(device), float(fraction))


def get_per_process_memory_fraction(device: Device = None) -> float:
    return _C.memory_fraction(device_index(device))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The figures above as a small table."""
    index = device_index(device)
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
