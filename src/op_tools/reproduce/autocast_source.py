"""The part of a reproduction file that only calls under autocast need; copied like runtime.py.

The CPU's autocast keeps fewer functions in float32 than an accelerator's does. On the CPU the casts are hence made here,
for the functions in which the captured call ran into them; in float64 values are rounded and kept in float64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

LOW = torch.bfloat16
LOWER: set[str] = set()
SINGLE: set[str] = set()

# ----------------------------------------------------------------------------------------------------------------------


class Casting(torch.overrides.TorchFunctionMode):
    """Casts as the autocast of an accelerator does: the functions in LOWER to LOW, those in SINGLE to float32."""

    def __init__(self, upcast: bool) -> None:
        super().__init__()
        self.upcast = upcast

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in LOWER or (name in SINGLE and not self.upcast):
            args, kwargs = self.cast(tuple(args), name), self.cast(dict(kwargs or {}), name)
        return func(*args, **(kwargs or {}))

    def cast(self, value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: self.cast(item, name) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.cast(item, name) for item in value)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if name in LOWER:
            low = value.to(LOW)
            return low.to(torch.float64) if self.upcast else value if value.dtype == torch.float64 else low
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


@contextlib.contextmanager
def under_autocast(device: torch.device, upcast: bool) -> Iterator[None]:
    """The state in which the call was captured."""
    with contextlib.ExitStack() as stack:
        if not upcast:
            stack.enter_context(torch.autocast(device.type, dtype=LOW, cache_enabled=False))
        if upcast or device.type == "cpu":
            stack.enter_context(Casting(upcast))
        yield
