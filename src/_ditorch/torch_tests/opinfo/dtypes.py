"""Does the device take exactly the dtypes it should?

Held to the CPU, a device must refuse a sample where the CPU refuses it and take it where the CPU does. Held to what the
database declares for another device type, a dtype counts as taken when every sample of it runs, forward and, for an
operator with a gradient, backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from _ditorch.torch_tests.opinfo.compare import Mismatch
from _ditorch.torch_tests.opinfo.inputs import Transfer
from _ditorch.torch_tests.opinfo.judge import Arguments, DeviceError, Judge, call, parts_of
from _ditorch.torch_tests.opinfo.pairs import ALL_DTYPES, name_of
from dicore.workers import one_line

__all__ = ["ask", "candidates"]

_SAMPLES = 4  # of each dtype


def candidates(judge: Judge) -> list[torch.dtype]:
    """All dtypes that the device has, whether the operator declares them or not."""
    declared = judge.op.supported_dtypes("cpu") | judge.op.supported_dtypes(judge.options.dtypes_of)
    found = [*ALL_DTYPES, *sorted(declared - set(ALL_DTYPES), key=str)]
    return [dtype for dtype in found if judge.options.has_dtype(name_of(dtype))]


def ask(judge: Judge, dtype: torch.dtype) -> None:
    """One dtype, forward and backward."""
    differentiable = judge.op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for backward in (False, True) if differentiable else (False,):
        try:
            samples = list(itertools.islice(judge.sample_inputs(dtype, backward), _SAMPLES))
        except Exception:  # the database cannot even make a sample of this dtype
            judge.compared += 1
            continue
        what = f"{name_of(dtype)} {'backward' if backward else 'forward'}"
        run = _backward(judge) if backward else _forward(judge)
        if judge.options.dtypes_of == "cpu":
            _like_the_cpu(judge, run, samples, what)
        else:
            _as_declared(judge, run, samples, what, dtype, backward)


def _like_the_cpu(judge: Judge, run: Callable[[Any], Any], samples: list[Any], what: str) -> None:
    for index, sample in enumerate(samples):
        moved = judge.moved(parts_of(sample), Transfer(judge.options.device))
        cpu, device = run(parts_of(sample)), judge.waited(run, moved)
        judge.compared += 1
        judge.both_raised(cpu, device, f"{what}, sample {index}: ")


def _as_declared(
    judge: Judge, run: Callable[[Any], Any], samples: list[Any], what: str, dtype: torch.dtype, backward: bool
) -> None:
    held_to = judge.options.dtypes_of
    declared = judge.op.supported_backward_dtypes(held_to) if backward else judge.op.supported_dtypes(held_to)
    refusals = []
    for sample in samples:
        moved = judge.moved(parts_of(sample), Transfer(judge.options.device))
        refusals.append(judge.waited(run, moved))
        judge.compared += 1
    error = next((found for found in refusals if isinstance(found, Exception)), None)
    if error is not None and dtype in declared:
        raise DeviceError(f"{what}: declared, but refused: {one_line(error)}") from error
    if error is None and samples and dtype not in declared:
        raise Mismatch(f"{what}: accepted, but not declared for {held_to}")


def _forward(judge: Judge) -> Callable[[Any], Any]:
    return lambda arguments: call(judge.op.op, arguments)


def _backward(judge: Judge) -> Callable[[Any], Any]:
    """The sum of all outputs, differentiated: the values do not matter here."""

    def run(arguments: Arguments) -> Any:
        result = call(judge.op.op, arguments)
        if isinstance(result, Exception):
            return result
        outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        try:
            return torch.autograd.grad(
                outputs,
                [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.requires_grad],
                [torch.ones_like(output) for output in outputs],
                allow_unused=True,
            )
        except Exception as error:
            return error

    return run
