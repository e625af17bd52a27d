"""Launches of kernels.

Triton's own launch looks up settings and describes every argument anew, which takes longer than most kernels run. Here a kernel
that was launched with the same numbers and kinds of tensors before is found by them, and launched directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.vendors.triton import INTERPRETED

# How a compiled kernel is called is Triton's own business, and was read in this version. Any other launches as documented.
_KNOWN_VERSION = "3.6."
# Lengths of prompts are numbers too, and there is no end of them.
_MOST = 2048


class Launcher:
    """A kernel. Its signature has tensors (or None) first, then numbers, then constants."""

    direct = triton.__version__.startswith(_KNOWN_VERSION) and not INTERPRETED

    def __init__(self, function: Callable[..., Any]) -> None:
        self.jit = triton.jit(function)
        self._known: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}
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
        found = self._known.get(tuple(key))
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
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = (kernel.run, kernel.function, kernel.packed_metadata)
