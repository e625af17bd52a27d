"""Makes a large call smaller: some rows of the batch instead of all, where rows do not meet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from op_tools.replay.items import Captured
from op_tools.replay.placing import map_tensors
from op_tools.reproduce.evidence import Evidence, evidence_of, judged_captured
from op_tools.runs import BadInput
from op_tools.trees import flat_results, flat_tensors
from op_tools.verdict.rounding import real_parts

__all__ = ["Cut", "cut"]

# Text of random bytes in base 85; weights and what else stays whole is counted by trying.
_TEXT_PER_BYTE = 1.27
_CODE = 20_000


@dataclass(frozen=True)
class Cut:
    """A smaller call that is as wrong."""

    evidence: Evidence
    text: str


def cut(evidence: Evidence, limit: int) -> Cut | None:
    """The call with fewer rows, or None: rows that depend on each other, nothing wrong inside, still too large."""
    if evidence.seen_on or not evidence.wrong:
        return None
    for length in _lengths(evidence):
        for start, count in _windows(evidence, length, limit):
            smaller = _tried(evidence, length, start, count)
            if smaller is not None:
                return Cut(smaller, f"rows {start} to {start + count - 1} of {length} of the first dimension")
    return None


def _lengths(evidence: Evidence) -> list[int]:
    """First dimensions that the wrong values share with floating inputs."""
    inputs = flat_tensors(evidence.captured.args, evidence.captured.kwargs)
    of_inputs = {t.shape[0] for t in inputs if t.dim() and t.is_floating_point()}
    of_results = {
        v.given.shape[0] for v in evidence.wrong if isinstance(v.given, torch.Tensor) and v.given.dim()
    }
    return sorted((of_inputs & of_results) - {0, 1}, reverse=True)


def _windows(evidence: Evidence, length: int, limit: int) -> Iterator[tuple[int, int]]:
    """(start, count) around the row that is off furthest, largest first."""
    tensors = flat_tensors(
        [evidence.captured.args, evidence.captured.grad_outputs or ()], evidence.captured.kwargs
    )
    rows = sum(_nbytes(t) for t in tensors if t.dim() and t.shape[0] == length)
    fixed = sum(_nbytes(t) for t in tensors if not (t.dim() and t.shape[0] == length))
    room = (limit - _CODE) / _TEXT_PER_BYTE - fixed
    most = int(room / max(1.0, rows / length)) if room > 0 else 0
    worst = _worst_row(evidence, length)
    for share in (1, 4, 16):
        count = min(most // share, length - 1)
        if count >= 1:
            yield max(0, min(worst - count // 2, length - count)), count


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _worst_row(evidence: Evidence, length: int) -> int:
    for value in evidence.wrong:
        if isinstance(value.given, torch.Tensor) and value.given.dim() and value.given.shape[0] == length:
            truth = value.reference.truth() or value.reference.own()
            error = (real_parts(value.given) - real_parts(truth[value.index])).abs().nan_to_num(math.inf)
            return int(error.reshape(length, -1).amax(1).argmax())
    return 0


def _tried(evidence: Evidence, length: int, start: int, count: int) -> Evidence | None:
    def rows(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != length:
            return tensor
        return tensor.narrow(0, start, count).detach().clone().requires_grad_(tensor.requires_grad)

    def shorter(value: Any) -> Any:
        return map_tensors(value, rows, lambda item: item)

    captured = evidence.captured
    smaller: Captured = replace(
        captured,
        args=shorter(captured.args),
        kwargs=shorter(captured.kwargs),
        outputs=shorter(captured.outputs),
        grad_inputs=shorter(captured.grad_inputs),
        grad_outputs=shorter(captured.grad_outputs),
        written=shorter(captured.written),
    )
    try:
        found = evidence_of(smaller)
        judged_captured(found)
    except (BadInput, RuntimeError, ValueError):
        return None
    wrong = {value.place for value in evidence.wrong}
    found.values = [value for value in found.values if value.place in wrong]
    return found if found.wrong and _agrees(evidence, found, rows) else None


def _agrees(whole: Evidence, part: Evidence, rows: Any) -> bool:
    """Whether the rows of the whole call's exact values are the smaller call's."""
    of_whole = {value.place: value for value in whole.values}
    for value in part.values:
        mine = value.reference.truth() or value.reference.own()
        full = of_whole[value.place].reference.truth() or of_whole[value.place].reference.own()
        want, got = flat_results(rows(full[value.index])), flat_results(mine[value.index])
        if want[0].shape != got[0].shape or not torch.allclose(
            real_parts(got[0]), real_parts(want[0]), rtol=1e-9, atol=1e-12, equal_nan=True
        ):
            return False
    return True
