"""The part of a reproduction file that is the same in all of them. It is copied into the file, so it needs torch alone.

What stands above the line of dashes is not copied. Written for old interpreters too: Python 3.9, torch 2.1.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib
import math
import os
import random
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

# ----------------------------------------------------------------------------------------------------------------------

CPU = torch.device("cpu")


class Saved(NamedTuple):
    """A tensor whose bytes are in DATA."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # as in the captured call; 0 where one value is shown many times
    at: int  # where its bytes begin
    requires_grad: bool = False
    on_host: bool = False  # was in host memory although the call ran on the device


class ValueCheck(NamedTuple):
    """One value to look at: |value - exact| must be within rtol * |exact| + atol, where exact is computed in float64."""

    name: str
    slot: int  # among the results, then the inputs that were written to, then the gradients
    dtype: Any
    shape: tuple[int, ...]
    rtol: float = 0.0
    atol: float = 0.0
    bounds: Saved | None = None  # the allowed error of each element, instead of rtol and atol
    rms: float = float("inf")  # most that the root mean square of (error / allowed error) may be
    same_dtype: bool = False  # compared with the CPU's result in the same dtype, not in float64
    or_as_cpu: bool = False  # an element that is what the CPU gives in the same dtype is right too
    leans: bool = False  # errors must not lean towards zero, as those of truncation do
    factor: float = float("inf")  # most that all values together may be off by a common factor
    picks: tuple[int, int, int] | None = None  # (input, first flattened dimension, dimension) of positions
    exact: Saved | None = None  # the exact values, where the CPU cannot compute them by this call


class Case(NamedTuple):
    """The captured call."""

    name: str
    call: Callable[..., Any]
    reference: Callable[..., Any] | None  # the same in float64
    device: str  # where it was captured
    inputs: list[Saved]
    checks: list[ValueCheck]
    written: tuple[int, ...] = ()  # inputs that the call writes to and does not return
    graph: bool = False  # whether the call recorded its gradient
    copies: bool = False  # whether it writes to inputs that require a gradient
    gradients: tuple[Saved | None, ...] = ()  # what came in from behind, for backward
    wants_grad: tuple[int, ...] = ()  # inputs whose gradients are looked at
    around: Callable[..., Any] | None = None  # autocast, where the call ran under it
    drawn: Callable[..., str] | None = None  # what speaks against results that are drawn at random
    repeat: int = 20  # how often the call is run: some kernels are wrong now and then


class CheckedValue(NamedTuple):
    """What a check found; `problem` is empty where the value is right."""

    problem: str
    worst: float = 0.0  # largest error / allowed error
    rms: float = 0.0  # root mean square of the same


def unpacked(text: str) -> torch.Tensor:
    """The bytes of all tensors."""
    content = zlib.decompress(base64.b85decode("".join(text.split())))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def read(
    saved: Saved, memory: torch.Tensor, device: torch.device = CPU, upcast: bool = False
) -> torch.Tensor:
    """A new tensor with the strides that it had; floating values in float64 if `upcast`."""
    slim = [1 if step == 0 else size for size, step in zip(saved.shape, saved.stride)]  # noqa: B905
    count = math.prod(slim) * torch.empty(0, dtype=saved.dtype).element_size()
    values = memory[saved.at : saved.at + count].clone().view(saved.dtype).reshape(slim)
    if upcast and (values.is_floating_point() or values.is_complex()):
        values = values.to(torch.complex128 if values.is_complex() else torch.float64)
    device = CPU if saved.on_host else device
    if 0 in saved.shape or torch.empty(saved.shape, device="meta").stride() == saved.stride:
        tensor = values.expand(saved.shape).to(device)
    else:
        extent = 1 + sum((size - 1) * step for size, step in zip(saved.shape, saved.stride))  # noqa: B905
        storage = torch.zeros(extent, dtype=values.dtype)
        storage.as_strided(slim, saved.stride).copy_(values)
        tensor = storage.to(device).as_strided(saved.shape, saved.stride)
    return tensor.detach().requires_grad_(saved.requires_grad)


def flat(value: Any) -> list[Any]:
    """Tensors and numbers of a result, in order."""
    if isinstance(value, (torch.Tensor, bool, int, float, complex)):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, (list, tuple)) else []


def computed(case: Case, memory: torch.Tensor, device: torch.device, upcast: bool = False) -> list[Any]:
    """Results, inputs that were written to, gradients; of the call on a device, or of the reference (`upcast`)."""
    x = [read(saved, memory, device, upcast) for saved in case.inputs]
    around = case.around(device, upcast) if case.around is not None else contextlib.nullcontext()
    with torch.set_grad_enabled(case.graph), around:
        given = [tensor.clone() for tensor in x] if case.copies else x
        result = case.reference(given) if upcast and case.reference is not None else case.call(given, device)
    values = flat(result)
    outputs = [value for value in values if isinstance(value, torch.Tensor)]
    values += [given[index] for index in case.written]
    if not case.wants_grad:
        return values
    roots, incoming = [], []
    for output, saved in zip(outputs, case.gradients):  # noqa: B905
        if saved is not None and output.requires_grad:
            roots.append(output)
            incoming.append(read(saved, memory, device, upcast).to(output.dtype))
    found = torch.autograd.grad(roots, [x[index] for index in case.wants_grad], incoming, allow_unused=True)
    return values + list(found)


def numbers(value: Any) -> torch.Tensor:
    """One flat tensor on the CPU: float64, or int64 for what has no fraction. Complex values are two numbers each."""
    value = (value if isinstance(value, torch.Tensor) else torch.tensor(value)).detach().to("cpu")
    value = value.to_dense() if value.layout != torch.strided else value
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    return value.to(torch.float64 if value.is_floating_point() else torch.int64).reshape(-1)


def shown_problem(
    check: ValueCheck, got: Any, exact: Any, own: Any, case: Case, memory: torch.Tensor
) -> CheckedValue:
    """Hold one value against the exact one, or against the CPU's own."""
    kind = (got.dtype, tuple(got.shape)) if isinstance(got, torch.Tensor) else (type(got), ())
    if kind != (check.dtype, check.shape):
        return CheckedValue(f"it is {kind[0]} {kind[1]}; expected {check.dtype} {check.shape}", float("inf"))
    given, want = numbers(got), numbers(own if check.same_dtype else exact)
    if not want.is_floating_point():
        given, want = given.to(torch.int64), want.to(torch.int64)
    error = (given - want).abs().to(torch.float64)
    error[given == want] = 0
    if want.is_floating_point():
        largest = torch.finfo(check.dtype).max if isinstance(check.dtype, torch.dtype) else float("inf")
        error[(given.isnan() & want.isnan()) | (given.isinf() & (given.sign() * want > largest))] = 0
        error = error.nan_to_num(float("inf"), float("inf"))
    if check.picks is not None:
        error[same_picks(check.picks, got, own, case, memory)] = 0
    if check.or_as_cpu:
        error[given == numbers(own)] = 0
    allowed = want.abs().to(torch.float64).nan_to_num(0, 0) * check.rtol + check.atol
    if check.bounds is not None:
        allowed = read(check.bounds, memory).to(torch.float64).reshape(-1)
    share = torch.where(error > 0, error / allowed, torch.zeros_like(error))
    return judged(check, share, given, want, error, allowed)


def judged(
    check: ValueCheck,
    share: torch.Tensor,
    given: torch.Tensor,
    want: torch.Tensor,
    error: torch.Tensor,
    allowed: torch.Tensor,
) -> CheckedValue:
    """The largest error, their root mean square, and their signs."""
    if not share.numel():
        return CheckedValue("")
    worst, rms = float(share.max()), float(share.norm()) / share.numel() ** 0.5
    if worst > 1:
        worst_at, count = int(share.argmax()), int((share > 1).sum())
        where: list[int] = []
        rest = worst_at // (share.numel() // math.prod(check.shape))  # complex: two numbers an element
        for size in reversed(check.shape):
            where.insert(0, rest % size)
            rest //= size
        text = f"{count} of {share.numel()} elements are off; element {where} is {given[worst_at].item()!r}"
        text += f", exact {want[worst_at].item()!r}, allowed error {allowed[worst_at].item():.3g}"
        return CheckedValue(text, worst, rms)
    if rms > check.rms:
        text = f"errors are {rms / check.rms:.3g} times as large on average as rounding explains"
        return CheckedValue(text, worst, rms)
    if check.factor < float("inf"):
        factor = along(given - want, want, allowed)[0]
        if abs(factor) > check.factor:
            text = (
                f"all values together are off by a factor of 1 {'+' if factor > 0 else '-'} {abs(factor):.3g}"
            )
            return CheckedValue(f"{text}, allowed {check.factor:.3g}", worst, rms)
    if check.leans:
        unit = torch.finfo(check.dtype).eps * 2.0 ** (want.frexp().exponent - 1)
        outward = ((given - want) * want.sign() / unit).nan_to_num(0, 0, 0).clamp(-2, 2)
        used = outward[outward.abs() > 0.02]
        if used.numel() >= 64 and float(used.sign().mean()) < -0.6 and float(used.mean()) < -0.3:
            return CheckedValue("errors lean towards zero, as those of truncation do", worst, rms)
    return CheckedValue("", worst, rms)


def along(error: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The share of the values that the errors are, by least squares, and what each element adds to its uncertainty."""
    weight = torch.where(allowed > 0, allowed, torch.full_like(allowed, float("inf"))).square().reciprocal()
    top, bottom = ((weight * want * part).nan_to_num(0, 0, 0) for part in (error.to(torch.float64), want))
    power = float(bottom.sum())
    share = float(top.sum()) / power if power > 0 else 0.0
    return share, (top - bottom * share) / (power or 1.0)


def same_picks(
    picks: tuple[int, int, int], got: torch.Tensor, own: torch.Tensor, case: Case, memory: torch.Tensor
) -> torch.Tensor:
    """Where other positions were picked and the values there are equal: any of them is right."""
    which, first, dim = picks
    values = read(case.inputs[which], memory)
    chosen = [index.detach().cpu() for index in (got, own)]
    if first:
        first = min(first, 0)  # 1: all dimensions are one
        values, chosen = values.flatten(first), [index.flatten(first) for index in chosen]
    chosen = [index.unsqueeze(dim) if index.dim() < values.dim() else index for index in chosen]
    inside = (chosen[0] >= 0) & (chosen[0] < values.shape[dim])
    a, b = (values.gather(dim, index.clamp(0, values.shape[dim] - 1)) for index in chosen)
    both_nan = a.isnan() & b.isnan() if values.is_floating_point() else torch.zeros_like(inside)
    return (inside & ((a == b) | both_nan)).reshape(-1)


def chosen_device(asked: str, captured_on: str) -> torch.device:
    """The device asked for, or this machine's accelerator."""
    accelerator = getattr(torch, "accelerator", None)
    if not asked and accelerator is not None and accelerator.is_available():
        return accelerator.current_accelerator()
    device = torch.device(asked or captured_on.partition(":")[0])
    torch.empty(1, device=device)
    return device


# What free memory holds before a call: kernels that read what they never wrote are wrong on some of it only.
AS_LEFT, NEW, NANS, ZEROS = (
    "memory as it was left",
    "new memory",
    "memory full of NaN",
    "memory full of zeros",
)


def prepare_memory(content: str, results: Sequence[Any], device: torch.device) -> None:
    """Let the device's allocator hand out such memory next: for results of these sizes, and for small workspaces."""
    if content == NEW:
        getattr(getattr(torch, device.type, None), "empty_cache", lambda: None)()
    if content in (NANS, ZEROS):
        sizes = [value.numel() * value.element_size() for value in results if isinstance(value, torch.Tensor)]
        sizes += [512 << power for power in range(12)]
        byte = 255 if content == NANS else 0  # 255 everywhere is NaN in every floating type
        blocks = [torch.full((size,), byte, dtype=torch.uint8, device=device) for size in sizes for _ in "ab"]
        del blocks


def contents(repeat: int) -> list[str]:
    """What memory holds before each call, in no regular order: a kernel may be wrong in every second call."""
    drawn = random.Random(0)
    return [AS_LEFT, *(drawn.choice((AS_LEFT, NEW, NANS, ZEROS)) for _ in range(repeat - 1))]


def same_bits(first: Any, second: Any) -> bool:
    """Whether two results are the same in every bit: then one check serves both."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    if (first.dtype, first.shape, first.layout) != (second.dtype, second.shape, torch.strided):
        return False
    a, b = (value.resolve_conj().contiguous().reshape(-1).view(torch.uint8) for value in (first, second))
    return torch.equal(a, b)


def expectations(case: Case, memory: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """What the CPU gives in float64 and in the same dtype, where the checks ask for it."""
    exact = own = [None] * (1 + max(check.slot for check in case.checks))
    if not all(check.same_dtype or check.exact is not None for check in case.checks):
        exact = computed(case, memory, CPU, upcast=True)
    if any(check.same_dtype or check.or_as_cpu for check in case.checks):
        own = computed(case, memory, CPU)
    return exact, own


def repeated(case: Case, memory: torch.Tensor, device: torch.device, repeat: int) -> list[list[CheckedValue]]:
    """Run the call so often; what is found of each value each time."""
    exact, own = expectations(case, memory)
    calls: list[list[CheckedValue]] = []
    before: list[Any] = []
    for content in contents(repeat):
        prepare_memory(content, before, device)
        try:
            got = computed(case, memory, device)
            got = [value.detach().to("cpu") if isinstance(value, torch.Tensor) else value for value in got]
        except Exception as error:
            raised = CheckedValue(f"the call raised {type(error).__name__}: {error}", float("inf"))
            calls.append([raised] * len(case.checks))
            before = []
            continue
        if case.drawn is not None:
            problem = case.drawn([read(saved, memory) for saved in case.inputs], got)
            calls.append([CheckedValue(problem)] * len(case.checks))
            before = got
            continue
        found = []
        for index, check in enumerate(case.checks):
            want = exact[check.slot] if check.exact is None else read(check.exact, memory)
            value = got[check.slot] if check.slot < len(got) else None
            if check.slot < len(before) and same_bits(value, before[check.slot]):
                found.append(calls[-1][index])
            else:
                found.append(shown_problem(check, value, want, own[check.slot], case, memory))
        calls.append(found)
        before = got
    return calls


def summary(calls: list[list[CheckedValue]]) -> str:
    """In how many calls something was wrong, and on what memory, where that makes the difference."""
    failed = [any(found.problem for found in call) for call in calls]
    text = f"failed in {sum(failed)} of {len(calls)} call{'s' if len(calls) > 1 else ''}"
    if all(failed) or not any(failed):
        return text
    on: dict[str, list[bool]] = {
        content: [] for content in (NANS, ZEROS)
    }  # other memory holds what was left there by chance
    for content, wrong in zip(contents(len(calls)), failed):  # noqa: B905
        on.get(content, []).append(wrong)
    for always, never in ((NANS, ZEROS), (ZEROS, NANS)):
        if min(len(on[always]), len(on[never])) >= 3 and all(on[always]) and not any(on[never]):
            return f"{text}, always on {always} and never on {never}: it reads memory that it never wrote"
    return f"{text}, first in call {failed.index(True) + 1}"


def parsed(case: Case) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"Runs {case.name} and checks what it gives. Exit code 0: right; 1: wrong; 2: there is no such device."
    )
    parser.add_argument("--device", default="", help="where to run; default: this machine's accelerator")
    parser.add_argument(
        "--repeat", type=int, default=case.repeat, metavar="N",
        help=f"how often, on memory that holds one thing and another; default: {case.repeat}",
    )  # fmt: skip
    parser.add_argument(
        "--import", dest="imports", action="append", default=[], metavar="MODULE",
        help="import this first: a backend that torch does not load by itself",
    )  # fmt: skip
    asked = parser.parse_args()
    if asked.repeat < 1:
        parser.error("--repeat: expected 1 or more")
    return asked


def main(case: Case, memory: torch.Tensor) -> int:
    """Run the call and say what is wrong. 0: all right, 1: wrong, 2: there is no such device."""
    asked = parsed(case)
    try:
        for name in asked.imports:
            importlib.import_module(name)
        device = chosen_device(asked.device, case.device)
    except ImportError as error:
        print(f"--import: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        print(f"no device to run on ({str(error).splitlines()[0]}); say --device NAME", file=sys.stderr)
        return 2
    print(f"{case.name} on {device}, torch {torch.__version__}")
    calls = repeated(case, memory, device, asked.repeat)
    wrong = 0
    for index, check in enumerate(case.checks):
        problem = next((call[index].problem for call in calls if call[index].problem), "")
        wrong += bool(problem)
        print(f"{check.name}: {'WRONG: ' + problem if problem else 'right'}")
    print(f"{wrong} of {len(case.checks)} values are wrong; {summary(calls)}")
    return 1 if wrong else 0


def beside(name: str) -> torch.Tensor:
    """The bytes of all tensors, from the file that came with this one."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    return torch.load(path, weights_only=True)
