"""Compares what a call gave on the device with the reference and with what was captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from op_tools import describe
from op_tools.captured.judge import CallJudge
from op_tools.captured.load import CapturedCall
from op_tools.captured.move import keeps_statistics
from op_tools.captured.run import Execution
from op_tools.describe import leaves, numbered
from op_tools.reference.recompute import Recomputation, RecomputeError
from op_tools.replay.report import ItemStatus, Row
from op_tools.trees import flat_results, flat_tensors
from op_tools.verdict import WORST_FIRST, Verdict, within_tolerance
from op_tools.verdict.closeness import identical

__all__ = ["ReplayComparison", "compare", "overall", "unread_rows"]

# What the rows call the parts of a capture.
_CAPTURED = {
    "output": "captured output",
    "grad_inputs": "captured grad",
    "grad_outputs": "captured grad_output",
}
_MOST_BRIEFS = 4


@dataclass
class ReplayComparison:
    """Rows of one run, and what the reference made of it (for the printed tables)."""

    forward: list[Row] = field(default_factory=list)
    backward: list[Row] = field(default_factory=list)
    recomputed: Recomputation | None = None
    recomputed_grads: Recomputation | None = None
    notes: list[str] = field(default_factory=list)


def overall(rows: Sequence[Row]) -> ItemStatus:
    """The worst verdict; rows that judge nothing (skipped, unchanged inputs) do not count as compared."""
    found = {row["verdict"] for row in rows if row["counts"]}
    statuses: tuple[ItemStatus, ...] = ("fail", "error", *WORST_FIRST)
    return next((status for status in statuses if status in found), "not compared")


def unread_rows(captured: CapturedCall, forward_id: int) -> list[Row]:
    """Parts of a capture that are damaged or missing: nothing can be said of them, so all is not well."""
    return [
        {**_unusable(f"{captured.name} {_CAPTURED[part]}", why), "forward_id": forward_id}
        for part, why in captured.unread.items()
    ]


def compare(
    judge: CallJudge, execution: Execution, forward_id: int, *, only_forward: bool = False
) -> ReplayComparison:
    """The rows of one run."""
    found = ReplayComparison()
    results = [judge.near(item) for item in flat_results(execution.result)]
    if judge.random:
        found.forward += _rows(judge, "output", judge.judged_random(results))
        found.forward += _shape_rows(judge, results)
    else:
        _forward(judge, execution, results, found)
        if execution.wants_grad:
            _backward(judge, execution, found)
        if not only_forward:
            found.backward += _misfits(judge.captured, execution)
    (found.backward or found.forward).extend(unread_rows(judge.captured, forward_id))
    for row in (*found.forward, *found.backward):
        row["forward_id"] = forward_id
    return found


def _forward(judge: CallJudge, execution: Execution, results: list[Any], found: ReplayComparison) -> None:
    written: list[int] = []
    try:
        written = list(judge.forward.written)
        found.recomputed = judge.forward
    except (RecomputeError, NotImplementedError) as error:
        found.notes.append(f"not compared with {judge.device}: {error}")
    inputs = flat_tensors(execution.args, execution.kwargs)
    after = [judge.near(inputs[position]) for position in written]
    verdicts = _judged(judge, [*results, *after], found.recomputed)
    found.forward += _input_rows(judge, execution, written, verdicts[len(results) :])
    found.forward += _rows(judge, "output", verdicts[: len(results)])
    saved = judge.captured.outputs
    if saved is None:
        return
    if judge.category == "uninitialised":
        found.forward += _shape_rows(judge, results)
        return
    pairs = _paired(results, saved)
    if pairs is None:
        text = f"{len(flat_results(saved))} values were captured, the call now gives {len(results)}"
        found.forward.append(_row(f"{judge.name} captured output", Verdict.plain("fail", text)))
        return
    found.forward += _captured_rows(judge, "output", results, verdicts, pairs, found.recomputed)


def _backward(judge: CallJudge, execution: Execution, found: ReplayComparison) -> None:
    reference = judge.backward(execution.grad_outputs, execution.wants_grad)
    grads = [judge.near(grad) for grad in execution.grads]
    try:
        reference.own()
        found.recomputed_grads = reference
    except (RecomputeError, NotImplementedError) as error:
        found.notes.append(f"gradients not compared with {judge.device}: {error}")
    verdicts = _judged(judge, grads, found.recomputed_grads)
    found.backward += _rows(judge, "grad", verdicts)
    if execution.as_captured and judge.captured.grad_inputs is not None:
        saved = judge.captured.gradients
        pairs = [
            (index, saved[position])
            for index, position in enumerate(execution.wants_grad)
            if position in saved and grads[index] is not None
        ]
        found.backward += _captured_rows(judge, "grad", grads, verdicts, pairs, found.recomputed_grads)


def _shape_rows(judge: CallJudge, results: list[Any]) -> list[Row]:
    """Where the captured values cannot be expected again, their shapes and dtypes still can."""
    if judge.captured.outputs is None:
        return []
    now, then = (
        [describe.brief(value) for value in flat_results(values) if isinstance(value, torch.Tensor)]
        for values in ([judge.near(value) for value in results], judge.captured.outputs)
    )
    if now == then:
        return []
    text = f"{', '.join(then) or 'nothing'} was captured, the call now gives {', '.join(now) or 'nothing'}"
    return [_row(f"{judge.name} {_CAPTURED['output']}", Verdict.plain("fail", text))]


def _misfits(captured: CapturedCall, execution: Execution) -> list[Row]:
    """Captured gradients that could not be used: they are not what this call can have had."""
    given, found = (flat_tensors(part or (), {}) for part in (captured.grad_outputs, captured.grad_inputs))
    rows: list[Row] = []
    if given and not execution.as_captured:
        outputs = [value for value in flat_results(execution.result) if isinstance(value, torch.Tensor)]
        text = f"{_briefs(given)} does not fit the outputs, {_briefs(outputs)}"
        rows.append(_unusable(f"{captured.name} {_CAPTURED['grad_outputs']}", text))
    if found and not captured.gradients:
        text = f"{_briefs(found)} does not fit the inputs, {_briefs(captured.tensors)}"
        rows.append(_unusable(f"{captured.name} {_CAPTURED['grad_inputs']}", text))
    return rows


def _briefs(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(map(describe.brief, tensors[:_MOST_BRIEFS])) or "nothing"


def _unusable(name: str, why: str) -> Row:
    """A row without figures: there was nothing to compare."""
    row = _row(name, Verdict.plain("fail", why))
    kept = ("name", "allclose", "verdict", "reason", "error_info", "counts")
    return {**{key: row[key] for key in kept}, "verdict": "error"}


def _judged(judge: CallJudge, values: list[Any], reference: Recomputation | None) -> list[Verdict]:
    if reference is None:
        return [Verdict.plain("skipped", "no reference") for _ in values]
    return judge.judged_all(values, reference)


def _input_rows(
    judge: CallJudge, execution: Execution, written: list[int], verdicts: list[Verdict]
) -> list[Row]:
    """Inputs after the call: what it may write is judged, the rest must be as it was."""
    inputs, before = leaves(execution.args), leaves(judge.captured.args)
    returned = {id(item) for item in flat_results(execution.result)}  # written to: judged as an output
    judged = dict(zip(written, verdicts, strict=True))
    rows: list[Row] = []
    position = -1
    for name, leaf, original in zip(numbered(judge.name, "input", len(inputs)), inputs, before, strict=True):
        position += isinstance(leaf, torch.Tensor)
        if isinstance(leaf, torch.Tensor) and position in judged:
            rows.append(_row(name, judged[position]))
        elif not isinstance(leaf, torch.Tensor) or id(leaf) in returned:
            rows.append(_row(name, Verdict.plain("same", "", judge.tolerance(leaf)), counts=False))
        else:
            rows.append(_untouched(judge, name, judge.near(leaf), judge.near(original)))
    rest = [verdict for index, verdict in judged.items() if index > position]  # written keyword arguments
    return rows + _rows(judge, "keyword", rest)


def _untouched(judge: CallJudge, name: str, now: torch.Tensor, original: Any) -> Row:
    if identical(now, original) or keeps_statistics(judge.name):
        return _row(name, Verdict.plain("same", "", judge.tolerance(now)), counts=False)
    verdict = within_tolerance(now, original, judge.tolerance(now))
    return _row(name, replace(verdict, status="fail", reason="the call changed an input it must not change"))


def _captured_rows(
    judge: CallJudge,
    what: str,
    results: list[Any],
    verdicts: list[Verdict],
    pairs: list[tuple[int, Any]],
    reference: Recomputation | None,
) -> list[Row]:
    """Is this what the device gave when it was captured? Rounding may differ between two devices."""
    found = [
        _like_captured(
            judge, results[index], judge.near(value), index, reference if verdicts[index].ok else None
        )
        for index, value in pairs
    ]
    return _rows(judge, f"captured {what}", found)


def _like_captured(
    judge: CallJudge, result: Any, value: Any, index: int, reference: Recomputation | None
) -> Verdict:
    tolerance = judge.tolerance(result)
    if identical(result, value):
        return Verdict.plain("same", "", tolerance)
    verdict = within_tolerance(result, value, tolerance)
    if reference is None:
        return verdict if verdict.ok else replace(verdict, reason="differs from what was captured")
    # The result is right. Two right answers may differ by rounding; a captured one that is wrong is news.
    then = judge.judged(value, reference, index)
    reason = "" if then.ok else f"the captured value is wrong and not reproduced here: {then.reason}"
    return replace(verdict, status="pass" if then.ok else "fail", reason=reason)


def _rows(judge: CallJudge, what: str, verdicts: Sequence[Verdict]) -> list[Row]:
    names = numbered(judge.name, what, len(verdicts))
    return [_row(name, verdict) for name, verdict in zip(names, verdicts, strict=True)]


def _row(name: str, verdict: Verdict, *, counts: bool = True) -> Row:
    row = {"name": name, **verdict.as_row(), "counts": counts and verdict.status != "skipped"}
    row["error_info"] = verdict.error_info or (verdict.reason if verdict.status == "fail" else "")
    return row


def _paired(results: list[Any], saved: tuple[Any, ...]) -> list[tuple[int, Any]] | None:
    """Captured values with the index of their result; None if they do not belong together."""
    values = flat_results(saved)
    present = [index for index, result in enumerate(results) if result is not None]
    return list(zip(present, values, strict=True)) if len(present) == len(values) else None
