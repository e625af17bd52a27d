"""Operator databases with planted faults, imported by name in the processes of `ditorch torch-tests`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput


class Twofaced:
    """Every second call, which is the device's, takes the other function; no device is needed for that."""

    def __init__(self, right: Callable[..., Any], wrong: Callable[..., Any]) -> None:
        self.sides = right, wrong
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(arg, torch.Tensor) and arg.dtype == torch.float64 for arg in args):
            return self.sides[0](*args, **kwargs)  # the wider reference is the CPU's
        self.calls += 1
        return self.sides[(self.calls - 1) % 2](*args, **kwargs)


def samples(op: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Any:
    for size in ((), (2, 3)):
        yield SampleInput(torch.ones(size, device=device, dtype=dtype))


def planted(name: str, wrong: Callable[..., Any]) -> OpInfo:
    return OpInfo(
        f"planted_{name}",
        op=Twofaced(torch.sin, wrong),
        dtypes=(torch.float32,),
        sample_inputs_func=samples,
        supports_autograd=False,
        supports_out=False,
    )


def raises(*_: Any) -> Any:
    raise RuntimeError("refused")


def crash(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(*_: Any) -> Any:
    time.sleep(60)


RIGHT, AFTER = planted("right", torch.sin), planted("after", torch.sin)
CRASHING = [RIGHT, planted("values", lambda x: torch.sin(x) + 1e-3), planted("crash", crash), AFTER]
HANGING = [planted("hang", hang), AFTER]
ONLY_RIGHT = [RIGHT]
ONLY_RAISING = [planted("raising", raises)]
