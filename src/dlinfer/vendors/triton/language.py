"""Triton as the kernels use it: the decorator, the target, and what all launches share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
import triton  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.interface import OPERATORS
from dlinfer.reference import KERNELS

HALVES = (torch.float16, torch.bfloat16)
_MULTIPROCESSORS_WITHOUT_A_DEVICE = 8


def jit(function: Callable[..., Any]) -> Any:
    """triton.jit, with a type."""
    return triton.jit(function)


def cdiv(count: int, size: int) -> int:
    """How many pieces of a size cover a count."""
    return -(-count // size)


def power_above(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least `number` and `least`."""
    return 1 << max(number - 1, least - 1, 0).bit_length()


@cache
def multiprocessors(device: torch.device) -> int:
    """How many blocks run at the same time, at least."""
    if device.type != "cuda":
        return _MULTIPROCESSORS_WITHOUT_A_DEVICE
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def reference(name: str, *args: Any) -> Any:
    """The reference in place of a kernel (float64, for instance): checks values first, as it asks for."""
    OPERATORS[name].values(*args)
    return KERNELS[name](*args)


def beside(numbers: Tensor, device: torch.device) -> Tensor:
    """Lengths, tables and indices where the kernel runs, those of a row side by side."""
    if numbers.device != device:
        # Not waited for: the copy is ordered before the kernel on its stream.
        numbers = numbers.to(device, non_blocking=True)
    return numbers if numbers.shape[-1] <= 1 or numbers.stride(-1) == 1 else numbers.contiguous()


@cache
def has_float8(device: torch.device) -> bool:
    """Whether numbers can become 8-bit floats there."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)


def prepared(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that runs on the device of its first argument, where Triton would launch on the current one.

    Matrix units know no float64: that falls to the reference.
    """

    @wraps(kernel)
    def call(*args: Any) -> Any:
        first = args[0]
        if first.dtype == torch.float64:
            return reference(name, *args)
        if not first.is_cuda or first.device.index == torch.cuda.current_device():
            return kernel(*args)
        with torch.cuda.device(first.device):
            return kernel(*args)

    return call
