"""A device as torch has it: its name and memory, and small live checks. Does it compute, and the right thing?

Each check compares values with the CPU, so a device that accepts work and returns nothing useful fails it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dicore.console import make_table

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["CHECKS", "DeviceCheck", "DeviceInfo", "device_infos", "devices_table", "torch_build"]

DeviceCheck = Callable[[str], None]
"""Takes a device type; raises when something is wrong."""


def torch_build() -> str:
    """What the installed torch was compiled for."""
    if torch.version.cuda:
        return f"cuda {torch.version.cuda}"
    hip = getattr(torch.version, "hip", None)
    xpu = getattr(torch.version, "xpu", None)
    return f"rocm {hip}" if hip else f"xpu {xpu}" if xpu else "cpu"


@dataclass(frozen=True)
class DeviceInfo:
    """One device; what cannot be asked is left empty."""

    device: str
    name: str
    total_memory: int | None
    free_memory: int | None


def device_infos(device_type: str) -> list[DeviceInfo]:
    """Name and memory of each device of a type."""
    module = torch.get_device_module(device_type)
    infos = []
    for index in range(module.device_count()):
        free: int | None = None
        total: int | None = None
        if hasattr(module, "mem_get_info"):
            free, total = module.mem_get_info(index)
        name = module.get_device_name(index) if hasattr(module, "get_device_name") else ""
        infos.append(DeviceInfo(f"{device_type}:{index}", name, total, free))
    return infos


def devices_table(devices: list[DeviceInfo]) -> Table:
    """Name, memory and free memory of each device."""
    from rich.markup import escape

    table = make_table("device", "name", "memory", "free", title="Devices")
    for device in devices:
        memory = (
            "" if size is None else f"{size / 2**30:.1f} GiB"
            for size in (device.total_memory, device.free_memory)
        )
        table.add_row(device.device, escape(device.name), *memory)
    return table


# -- the checks ------------------------------------------------------------------------------------------------


def _expect_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(actual.cpu(), expected):
        raise AssertionError(f"wrong values: {actual.cpu().flatten()[:4].tolist()}...")


def _expect_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    # Not torch.testing: importing it costs more than all checks together.
    if not torch.allclose(actual.cpu(), expected, rtol=1e-4, atol=1e-5):
        difference = (actual.cpu() - expected).abs().max().item()
        raise AssertionError(f"wrong values: the largest difference is {difference:.3g}")


def _inputs(*shape: int) -> torch.Tensor:
    # Its own generator: a diagnosis must not disturb the seeds of the program it runs in.
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def add(device_type: str) -> None:
    x = torch.arange(8.0)
    _expect_equal(x.to(device_type) + 3, x + 3)


def matmul(device_type: str) -> None:
    a, b = _inputs(17, 33), _inputs(33, 9)
    _expect_close(a.to(device_type) @ b.to(device_type), a @ b)


def autograd(device_type: str) -> None:
    x = _inputs(5, 5)
    on_cpu = x.clone().requires_grad_()
    on_device = x.to(device_type).requires_grad_()
    for leaf in (on_cpu, on_device):
        (leaf.sigmoid() * leaf).sum().backward()
    if on_device.grad is None or on_cpu.grad is None:
        raise AssertionError("backward left no gradient")
    _expect_close(on_device.grad, on_cpu.grad)


def stream(device_type: str) -> None:
    module = torch.get_device_module(device_type)
    x = torch.arange(64.0)
    on_device = x.to(device_type)
    side = module.Stream()
    side.wait_stream(module.current_stream())
    with module.stream(side):
        result = on_device * 2
    module.current_stream().wait_stream(side)
    _expect_equal(result + 1, x * 2 + 1)


def copy_back(device_type: str) -> None:
    x = torch.arange(24).reshape(4, 6)
    _expect_equal(x.to(device_type).t()[1::2], x.t()[1::2])


CHECKS: tuple[DeviceCheck, ...] = (add, matmul, autograd, stream, copy_back)
