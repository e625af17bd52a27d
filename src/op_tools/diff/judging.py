"""Judges the captured values of one call, in both runs: each against what the CPU makes of that run's own inputs.

Nothing runs on the device: its result is what was captured. Payloads and results are plain data, so that this can
happen in another process or on another machine.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from op_tools.captured.admission import NotReplayable, TooLarge, admitted, limit_for
from op_tools.captured.judge import CallJudge, CaptureMismatch
from op_tools.captured.load import PARTS, CapturedCall, Item, read_item
from op_tools.categories import category_of
from op_tools.names import RefusedName, function_named
from op_tools.reference.recompute import RecomputeError
from op_tools.storage import CaptureError, Opaque
from op_tools.trees import flat_results
from op_tools.verdict import WORST_FIRST, Verdict
from op_tools.verdict.closeness import identical

__all__ = ["FIGURES", "judge_call"]

_NOT_JUDGED = frozenset({"uninitialised", "view", "communication"})
FIGURES = ("allclose", "cosine_similarity", "max_abs_diff", "max_relative_diff", "error_over_bound")
_LONGEST_REASON = 500
_CPU = torch.device("cpu")

Side = dict[str, Any]


class _NotJudged(Exception):
    """Nothing can be said about this call; the message says why."""


def judge_call(payload: dict[str, Any]) -> dict[str, Any]:
    """Judge one call.

    Payload: `name`, `gradients` (whether those of the call are meant, not its results), `a` and `b` (folder and prefix
    of the capture in either run, or None), `allow` (packages whose functions may run). Result: `a` and `b` (status,
    reason, figures, and `lost` where the capture is not whole; None where there is no capture), `same_inputs` and
    `same_outputs` where both are there and their values mean something, and whether the call is `random`.
    """
    with warnings.catch_warnings():
        # Beta layouts, deprecated calls: they were the program's business when it was captured.
        warnings.simplefilter("ignore")
        return _judge_call(payload)


def _judge_call(payload: Mapping[str, Any]) -> dict[str, Any]:
    name, allow = payload["name"], tuple(payload.get("allow") or ())
    result: dict[str, Any] = {"same_inputs": None, "same_outputs": None, "random": False}
    if reason := _never_judged(name, allow):
        # Not even read: what an uninitialised result holds is nobody's business, and a view holds what it is a view of.
        sides = {side: payload.get(side) and _side("not judged", reason) for side in ("a", "b")}
        return {**result, **sides}
    gradients = payload["gradients"]
    a, b = (_read(name, payload.get(side), gradients, allow) for side in ("a", "b"))
    if isinstance(a, CallJudge) and isinstance(b, CallJudge):
        (in_a, out_a), (in_b, out_b) = (_values(side.captured, gradients) for side in (a, b))
        result["same_inputs"], result["same_outputs"] = _alike(in_a, in_b), _alike(out_a, out_b)
    result["random"] = any(isinstance(side, CallJudge) and side.random for side in (a, b))
    result["b"] = _judged(b, gradients)
    identical_sides = result["same_inputs"] and result["same_outputs"]
    result["a"] = result["b"] if identical_sides else _judged(a, gradients)
    return result


def _values(call: CapturedCall, gradients: bool) -> tuple[Any, Any]:
    """What is to be judged of one side: the call's inputs and what came out, or the gradients in and out."""
    if gradients:
        return (call.args, call.kwargs, call.grad_outputs), call.grad_inputs
    return (call.args, call.kwargs), (call.outputs, call.written)


def _never_judged(name: str, allow: tuple[str, ...]) -> str:
    if not name:
        return "the capture does not say which operator it is"
    try:
        category = category_of(function_named(name, allow=allow), name)
    except RefusedName as error:
        return str(error)
    return f"{category} calls are not judged" if category in _NOT_JUDGED else ""


def _read(
    name: str, where: Sequence[str] | None, gradients: bool, allow: tuple[str, ...]
) -> CallJudge | Side | None:
    """The judge of the values, or why there are none; None where the run has no such call."""
    if where is None:
        return None
    item = Item(Path(where[0]), where[1])
    wanted = PARTS if gradients else PARTS[:1]
    try:
        captured = read_item(item, wanted)
    except (CaptureError, OSError) as error:
        return _side("not judged", f"its capture cannot be read: {error}", lost=True)
    missing = [f"{item.file(part)} is not there" for part in wanted if not item.file(part).exists()]
    if captured.unread or missing:
        problem = (*captured.unread.values(), *missing)[0]
        return _side("not judged", f"its capture cannot be read: {problem}", lost=True)
    try:
        func, captured = admitted(replace(captured, name=captured.name or name), _CPU, allow=allow)
    except (NotReplayable, RefusedName, TooLarge) as error:
        return _side("not judged", str(error))
    return CallJudge(func, captured)


def _alike(left: Any, right: Any) -> bool | None:
    """Equal bit for bit, devices aside; None for tensors that cannot be compared, or not without much memory."""
    try:
        return _equal(left, right)
    except (
        RuntimeError,
        NotImplementedError,
        TypeError,
        TooLarge,
    ):  # layouts and dtypes without a comparison
        return None


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, tuple | list) and isinstance(right, tuple | list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, slice) and isinstance(right, slice):
        return all(_equal(getattr(left, end), getattr(right, end)) for end in ("start", "stop", "step"))
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
            return False
        _check_span(left, right)
        return identical(left, right)
    if isinstance(left, Opaque) and isinstance(right, Opaque):  # its text may hold an address
        return left.type_name == right.type_name
    return identical(left, right) or (_is_device(left) and _is_device(right))


def _check_span(*tensors: torch.Tensor) -> None:
    """An expanded tensor has far more elements than memory; comparing takes as many as it shows."""
    for tensor in tensors:
        if tensor.layout is torch.strided:
            limit = limit_for(tensor.untyped_storage().nbytes(), has_outputs=True)
            if tensor.numel() * tensor.element_size() > limit:
                raise TooLarge("it shows far more elements than it has")


def _is_device(value: Any) -> bool:
    """Whether a value says where: what one run has there the other need not have."""
    if not isinstance(value, str):
        return isinstance(value, torch.device)
    try:
        torch.device(value)
    except RuntimeError:
        return False
    return True


def _judged(judge: CallJudge | Side | None, gradients: bool) -> Side | None:
    if not isinstance(judge, CallJudge):
        return judge
    try:
        verdicts = (_gradients if gradients else _results)(judge)
    except CaptureMismatch as error:
        return _side("not judged", str(error), lost=True)
    except (_NotJudged, TooLarge, RecomputeError, NotImplementedError) as error:
        return _side("not judged", str(error))
    except Exception as error:  # one call that cannot be judged is no reason to stop
        return _side("not judged", f"{type(error).__name__}: {error}", lost=True)
    return _worst(verdicts)


def _worst(verdicts: Sequence[Verdict]) -> Side:
    """The worst verdict stands for the call."""
    found = [verdict for verdict in verdicts if verdict.status in WORST_FIRST]
    if not found:
        reasons = [verdict.reason for verdict in verdicts if verdict.reason]
        return _side("not judged", reasons[0] if reasons else "it has no values to compare")
    worst = min(found, key=lambda verdict: (WORST_FIRST.index(verdict.status), -_size(verdict)))
    row = worst.as_row()
    figures = {name: row[name] for name in FIGURES}
    return {**_side(worst.status, worst.reason), **figures, "output": verdicts.index(worst)}


def _size(verdict: Verdict) -> float:
    size = verdict.error_over_bound
    return verdict.max_abs_diff if math.isnan(size) else size


def _side(status: str, reason: str, lost: bool = False) -> Side:
    return {"status": status, "reason": " ".join(reason.split())[:_LONGEST_REASON], "lost": lost}


def _results(judge: CallJudge) -> list[Verdict]:
    if judge.random:
        return judge.judged_random(flat_results(judge.captured.outputs))
    values = judge.captured_results()
    present = [(index, value) for index, value in enumerate(values) if value is not None]
    found = [judge.judged(value, judge.forward, index) for index, value in present]
    if len(found) < len(values) and all(verdict.ok for verdict in found):
        # Of some functions only running them tells that they write: nothing of it is in any capture.
        written = len(judge.captured.written)
        raise (CaptureMismatch if written else _NotJudged)(
            f"the call writes to {len(judge.forward.written)} tensors that it does not return, {written} were captured"
        )
    return found


def _gradients(judge: CallJudge) -> list[Verdict]:
    if judge.random:
        raise _NotJudged("gradients of a random call are judged at ATen level only")
    parts = (judge.captured.grad_inputs, judge.captured.grad_outputs)
    if not all(any(grad is not None for grad in part or ()) for part in parts):
        raise _NotJudged("no gradients were captured")
    given, found = judge.captured_grad_outputs(), judge.captured.gradients
    if given is None or not found:
        raise CaptureMismatch("the captured gradients do not fit the call's inputs and outputs")
    reference = judge.backward(given, list(found))
    if any(grad is None for grad in reference.own()):
        raise _NotJudged("the reference has no gradient where one was captured")
    return judge.judged_all(list(found.values()), reference)
