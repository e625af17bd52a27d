"""Compiles kernels for a GPU on a machine that has none: launches become compilations, arguments stay on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton_target import DeviceTarget


@contextmanager
def compiling() -> Iterator[list[Any]]:
    """Inside, every launch of a kernel compiles it, down to machine code, and gives it to the list."""
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    from dlinfer.vendors.triton.launching import Launcher

    compiled: list[Any] = []
    launch, before = JITFunction.run, driver._active

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **kwargs)
        compiled.append(kernel)
        return kernel

    driver.set_active(DeviceTarget())
    Launcher.direct, direct = False, Launcher.direct
    JITFunction.run = compile_only
    try:
        yield compiled
    finally:
        JITFunction.run = launch
        driver._active = before
        Launcher.direct = direct
