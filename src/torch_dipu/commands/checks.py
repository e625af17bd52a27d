"""Live checks of what is particular to the device 'dipu'; the general ones are ditorch's."""

from __future__ import annotations

import torch

from _ditorch.checks import CHECKS, Check

__all__ = ["DEVICE_CHECKS"]


def memory_is_counted(device_type: str) -> None:
    module = torch.get_device_module(device_type)
    before = module.memory_allocated()
    x = torch.ones(1 << 18, device=device_type)
    held = module.memory_allocated() - before
    if held < x.nbytes:
        raise AssertionError(f"{x.nbytes} bytes were allocated, {held} are counted")
    del x
    if module.memory_allocated() != before:
        raise AssertionError("freed memory is still counted as allocated")


def random_numbers(device_type: str) -> None:
    generator = torch.Generator(device_type)
    first = torch.rand(64, device=device_type, generator=generator.manual_seed(7)).cpu()
    second = torch.rand(64, device=device_type, generator=generator.manual_seed(7)).cpu()
    if not torch.equal(first, second):
        raise AssertionError("the same seed gives other numbers")
    if not (first.min() >= 0 and first.max() < 1 and first.unique().numel() > 32):
        raise AssertionError("torch.rand is not uniform in [0, 1)")


def event_timing(device_type: str) -> None:
    module = torch.get_device_module(device_type)
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    x = torch.ones(64, 64, device=device_type)
    start.record()
    for _ in range(4):
        x = x @ x / 64
    end.record()
    end.synchronize()
    elapsed = start.elapsed_time(end)
    if not elapsed > 0:
        raise AssertionError(f"work between two events took {elapsed} ms")


def pinned_memory(device_type: str) -> None:
    x = torch.arange(32.0).pin_memory()
    if not x.is_pinned():
        raise AssertionError("pin_memory() returned memory that is not pinned")
    back = x.to(device_type, non_blocking=True).cpu()
    if not torch.equal(back, x):
        raise AssertionError("a copy from pinned memory changed the values")


DEVICE_CHECKS: tuple[Check, ...] = (*CHECKS, memory_is_counted, random_numbers, event_timing, pinned_memory)
