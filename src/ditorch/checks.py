"""Small live checks of a device: does it compute, and does it compute the right thing?

Each check compares values with the CPU, so a device that accepts work and returns nothing useful fails it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

__all__ = ["CHECKS", "Check", "CheckResult", "run_checks"]

Check = Callable[[str], None]
"""Takes a device type; raises when something is wrong."""


@dataclass(frozen=True)
class CheckResult:
    name: str
    ok: bool
    seconds: float
    reason: str = ""


def run_checks(device_type: str, checks: Iterable[Check] | None = None) -> list[CheckResult]:
    """Run every check, whatever the earlier ones did."""
    return [_run(check, device_type) for check in (CHECKS if checks is None else checks)]


def _run(check: Check, device_type: str) -> CheckResult:
    name = check.__name__.replace("_", " ")
    start = time.perf_counter()
    try:
        check(device_type)
    except Exception as error:  # whatever a device can raise is the finding
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        return CheckResult(name, False, time.perf_counter() - start, reason)
    return CheckResult(name, True, time.perf_counter() - start)


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


CHECKS: tuple[Check, ...] = (add, matmul, autograd, stream, copy_back)
