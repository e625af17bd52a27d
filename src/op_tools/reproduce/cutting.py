"""Makes a large call smaller: some rows of the batch instead of all, where rows do not meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from op_tools.reproduce.judged import JudgedCall
from op_tools.runs import BadInput
from op_tools.trees import flat_tensors, map_tensors
from op_tools.verdict.rounding import real_parts

__all__ = ["cut"]

# Text of random bytes in base 85; weights and what else stays whole is counted by trying.
_TEXT_PER_BYTE = 1.27
_CODE = 20_000


def cut(call: JudgedCall, limit: int) -> tuple[JudgedCall, str] | None:
    """A smaller call that is as wrong, and which rows it has; None: rows that depend on each other, nothing wrong inside,
    still too large."""
    if call.seen_on or not call.wrong:
        return None
    for length in _lengths(call):
        for start, count in _windows(call, length, limit):
            smaller = _tried(call, length, start, count)
            if smaller is not None:
                return smaller, f"rows {start} to {start + count - 1} of {length} of the first dimension"
    return None


def _lengths(call: JudgedCall) -> list[int]:
    """First dimensions that the wrong values share with floating inputs."""
    inputs = call.captured.tensors
    of_inputs = {t.shape[0] for t in inputs if t.dim() and t.is_floating_point()}
    of_results = {v.given.shape[0] for v in call.wrong if isinstance(v.given, torch.Tensor) and v.given.dim()}
    return sorted((of_inputs & of_results) - {0, 1}, reverse=True)


def _windows(call: JudgedCall, length: int, limit: int) -> Iterator[tuple[int, int]]:
    """(start, count) around the row that is off furthest, largest first."""
    tensors = flat_tensors([call.captured.args, call.captured.grad_outputs or ()], call.captured.kwargs)
    rows = sum(_nbytes(t) for t in tensors if t.dim() and t.shape[0] == length)
    fixed = sum(_nbytes(t) for t in tensors if not (t.dim() and t.shape[0] == length))
    room = (limit - _CODE) / _TEXT_PER_BYTE - fixed
    most = int(room / max(1.0, rows / length)) if room > 0 else 0
    worst = _worst_row(call, length)
    for share in (1, 4, 16):
        count = min(most // share, length - 1)
        if count >= 1:
            yield max(0, min(worst - count // 2, length - count)), count


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _worst_row(call: JudgedCall, length: int) -> int:
    for value in call.wrong:
        if isinstance(value.given, torch.Tensor) and value.given.dim() and value.given.shape[0] == length:
            error = (real_parts(value.given) - real_parts(value.exact)).abs().nan_to_num(math.inf)
            return int(error.reshape(length, -1).amax(1).argmax())
    return 0


def _tried(call: JudgedCall, length: int, start: int, count: int) -> JudgedCall | None:
    def rows(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != length:
            return tensor
        return tensor.narrow(0, start, count).detach().clone().requires_grad_(tensor.requires_grad)

    parts = ("args", "kwargs", "outputs", "grad_inputs", "grad_outputs", "written")
    shorter = {part: map_tensors(getattr(call.captured, part), rows) for part in parts}
    try:
        found = JudgedCall.of(replace(call.captured, **shorter))
    except (BadInput, RuntimeError, ValueError):
        return None
    wrong = {value.slot for value in call.wrong}
    found.values = [value for value in found.values if value.slot in wrong]
    return found if found.wrong and _agrees(call, found, rows) else None


def _agrees(whole: JudgedCall, part: JudgedCall, rows: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether the rows of the whole call's exact values are the smaller call's."""
    of_whole = {value.slot: value for value in whole.values}
    for value in part.values:
        got, want = value.exact, rows(of_whole[value.slot].exact)
        if want.shape != got.shape or not torch.allclose(
            real_parts(got), real_parts(want), rtol=1e-9, atol=1e-12, equal_nan=True
        ):
            return False
    return True
