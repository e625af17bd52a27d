"""Twelve wrong kernels for the device, put in from outside one at a time: what the tools for people must find.

Each computes the right answer on the CPU and then makes the kind of mistake kernels make: a forgotten tail, a wrong
constant, a lost term, a value off by a thousandth. `install(name)` replaces the device's kernel in this process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Mistake = Callable[[Tensor], None]


def tail(right: Tensor) -> None:
    """A kernel that works in blocks and forgets the rest."""
    right.flatten()[-max(1, right.numel() // 8) :] = 0


def off(right: Tensor) -> None:
    """A constant with too few digits."""
    right.mul_(1.002)


def one_element(right: Tensor) -> None:
    """A race: one value is what another should be."""
    flat = right.view(-1)
    flat[flat.numel() // 2] = flat[0] + 1.0


def shifted(right: Tensor) -> None:
    """An index that is off by one, in the last row."""
    rows = right.view(-1, right.shape[-1])
    rows[-1] = rows[-1].roll(1)


# ATen overload -> the mistake. The first seven run in forward, four in backward only, the last in the optimizer.
WRONG: dict[str, Mistake] = {
    "mm": tail,
    "bmm": one_element,
    "silu": off,
    "rsqrt": off,
    "_softmax": shifted,
    "embedding": shifted,
    "mean.dim": off,
    "silu_backward": tail,
    "_softmax_backward_data": one_element,
    "embedding_dense_backward": tail,
    "_log_softmax_backward_data": one_element,
    "addcdiv_": off,
}

_libraries: list[torch.library.Library] = []


def overload_of(name: str) -> Any:
    """`mean.dim` -> torch.ops.aten.mean.dim"""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def aten_name(name: str) -> str:
    """`silu` -> `aten.silu.default`, as the tools write it."""
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


def install(name: str, mistake: Mistake | None = None) -> torch.library.Library:
    """Replace the device's kernel of one operator; it stays as long as the returned object lives."""
    overload, mistake = overload_of(name), mistake or WRONG[name]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        device = next(value.device for value in args if isinstance(value, Tensor))
        near = [value.cpu() if isinstance(value, Tensor) else value for value in args]
        with torch.no_grad():
            right = overload(*near, **kwargs).contiguous()
            mistake(right)
        if name.endswith("_"):
            return args[0].copy_(right)
        return right.to(device)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(name, kernel, "PrivateUse1", allow_override=True)
    _libraries.append(library)
    return library
