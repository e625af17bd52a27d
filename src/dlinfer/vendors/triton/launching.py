"""Triton as the kernels use it: decorators, registration, launches.

Triton's own launch looks up settings and describes every argument anew, which takes longer than most kernels run. Here a kernel
that was launched with the same numbers and kinds of tensors before is found by them, and launched directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import torch
import triton  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.interface import OPERATORS
from dlinfer.interface.kernels import Kernels
from dlinfer.reference import KERNELS
from dlinfer.vendors.triton import INTERPRETED

HALF_DTYPES = (torch.float16, torch.bfloat16)
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


def _prepared(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that runs on the device of its first argument, where Triton would launch on the current one.

    What it does not serve (it returns NotImplemented) falls to the reference, whose values are checked first, as it asks for;
    so does float64, which matrix units do not know.
    """

    @wraps(kernel)
    def call(*args: Any) -> Any:
        first, result = args[0], NotImplemented
        if first.dtype != torch.float64:
            if not first.is_cuda or first.device.index == torch.cuda.current_device():
                result = kernel(*args)
            else:
                with torch.cuda.device(first.device):
                    result = kernel(*args)
        if result is NotImplemented:
            OPERATORS[name].values(*args)
            return KERNELS[name](*args)
        return result

    return call


kernel = Kernels(_prepared)
"""The vendor's kernels: `@kernel("rms_norm")`."""


# ---- launches ----

# How a compiled kernel is called is Triton's own business, and was read in this version. Any other launches as documented.
_DIRECT_VERSION = "3.6."
# Lengths of prompts are numbers too, and there is no end of them.
_MOST = 2048


class Launcher:
    """A kernel. Its signature has tensors (or None) first, then numbers, then constants."""

    direct = triton.__version__.startswith(_DIRECT_VERSION) and not INTERPRETED

    def __init__(self, function: Callable[..., Any]) -> None:
        self.jit = triton.jit(function)
        self._compiled: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}
        # Profilers that hook into launches must see them.
        self._hooks = triton.knobs.runtime.launch_enter_hook if self.direct else None

    def __call__(
        self,
        grid: tuple[int, ...],
        tensors: Sequence[Tensor | None],
        numbers: tuple[float, ...],
        *,
        num_warps: int,
        num_stages: int = 3,
        **constants: Any,
    ) -> None:
        """Runs so many programs on the current device and stream. Constants are in the order of the signature."""
        if not self.direct or (self._hooks is not None and self._hooks.calls):
            self.jit[grid](*tensors, *numbers, num_warps=num_warps, num_stages=num_stages, **constants)
            return
        driver = triton.runtime.driver.active
        device = driver.get_current_device()
        key: list[Any] = [device, num_warps, num_stages, numbers, *constants.values()]
        addresses: list[int | None] = []
        together = 0
        for tensor in tensors:
            if tensor is None:
                addresses.append(None)
                key.append(None)
            else:
                address = tensor.data_ptr()
                together |= address
                addresses.append(address)
                key.append(tensor.dtype)
        if together & 15:
            # Rare: kernels are compiled for the alignment of each tensor.
            key += [address is not None and address & 15 for address in addresses]
        found = self._compiled.get(tuple(key))
        if found is None:
            self._first(tuple(key), grid, (*tensors, *numbers), constants, num_warps, num_stages)
            return
        run, function, metadata = found
        x, y, z = (*grid, 1, 1)[:3]
        stream = driver.get_current_stream(device)
        run(x, y, z, stream, function, metadata, None, None, None, *addresses, *numbers, *constants.values())

    def _first(
        self,
        key: tuple[Any, ...],
        grid: tuple[int, ...],
        args: tuple[Any, ...],
        constants: dict[str, Any],
        warps: int,
        stages: int,
    ) -> None:
        names = self.jit.arg_names
        if tuple(names[len(args) :]) != tuple(constants):
            raise TypeError(f"constants of {names} are not in the order of the signature: {list(constants)}")
        kernel = self.jit[grid](*args, num_warps=warps, num_stages=stages, **constants)
        if len(self._compiled) >= _MOST:
            self._compiled.clear()
        self._compiled[key] = (kernel.run, kernel.function, kernel.packed_metadata)
