"""Judges the captured values of one call, in both runs: each against what the CPU makes of that run's own inputs.

Nothing runs on the device: its result is what was captured. Payloads and results are plain data, so that this can
happen in another process or on another machine.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from op_tools.categories import category_of, is_random
from op_tools.names import RefusedName, function_named
from op_tools.reference.recompute import Recomputation, RecomputeError
from op_tools.replay.bounds import TooLarge, check_memory, limit_for
from op_tools.replay.closeness import identical, parts_of
from op_tools.replay.items import Captured, Item, opaque_values
from op_tools.replay.placing import place
from op_tools.storage import CaptureError, Opaque, load
from op_tools.trees import flat_results, flat_tensors
from op_tools.verdict import Verdict, judge
from op_tools.verdict.distribution import judge_random
from op_tools.verdict.tolerance import tolerance_for

__all__ = ["JUDGED", "judge_call"]

# What a side can come to, worst first. "not judged" has its reason beside it.
_WORST_FIRST = ("fail", "lower_precision", "pass", "same")
JUDGED = frozenset(_WORST_FIRST)
_NOT_JUDGED = frozenset({"uninitialised", "view", "communication"})
_LONGEST_REASON = 500
_CPU = torch.device("cpu")

Side = dict[str, Any]


class _NotJudged(Exception):
    """Nothing can be said about this call; the message says why."""


class _Lost(_NotJudged):
    """What the run should have left of this call is not there, or does not fit the call."""


@dataclass(frozen=True)
class _Missing:
    """Why there are no values to judge."""

    reason: str
    is_lost: bool = False


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
    allow = tuple(payload.get("allow") or ())
    result: dict[str, Any] = {"same_inputs": None, "same_outputs": None, "random": False}
    if reason := _never_judged(payload["name"], allow):
        # Not even read: what an uninitialised result holds is nobody's business, and a view holds what it is a view of.
        sides = {side: payload.get(side) and _side("not judged", reason) for side in ("a", "b")}
        return {**result, **sides}
    a, b = (
        _admitted(_read(payload["name"], payload.get(side), payload["gradients"]), allow)
        for side in ("a", "b")
    )
    if isinstance(a, _Values) and isinstance(b, _Values):
        result["same_inputs"], result["same_outputs"] = _alike(a.given, b.given), _alike(a.outputs, b.outputs)
    result["random"] = any(isinstance(side, _Values) and side.is_random(allow) for side in (a, b))
    result["b"] = _judged(b, allow)
    identical_sides = result["same_inputs"] and result["same_outputs"]
    result["a"] = result["b"] if identical_sides else _judged(a, allow)
    return result


def _admitted(values: _Values | _Missing | None, allow: tuple[str, ...]) -> _Values | _Missing | None:
    """The values, where looking at them takes no more memory than they justify."""
    if not isinstance(values, _Values):
        return values
    try:
        _check_memory(_function(values.captured.name, allow), values.captured)
    except (_NotJudged, RefusedName, TooLarge) as error:
        return _Missing(str(error))
    return values


def _never_judged(name: str, allow: tuple[str, ...]) -> str:
    try:
        category = category_of(_function(name, allow), name)
    except (_NotJudged, RefusedName) as error:
        return str(error)
    return f"{category} calls are not judged" if category in _NOT_JUDGED else ""


class _Values:
    """What is to be judged of one side: the call's inputs and what came out, or the gradients in and out."""

    def __init__(self, captured: Captured, gradients: bool) -> None:
        self.captured = captured
        self.gradients = gradients
        self.given = (captured.args, captured.kwargs, captured.grad_outputs if gradients else None)
        self.outputs = captured.grad_inputs if gradients else (captured.outputs, captured.written)

    def is_random(self, allow: tuple[str, ...]) -> bool:
        captured = self.captured
        try:
            func = _function(captured.name, allow)
        except (_NotJudged, RefusedName):
            return False
        return is_random(func, captured.name, captured.args, captured.kwargs)


def _read(name: str, where: Sequence[str] | None, gradients: bool) -> _Values | _Missing | None:
    """The values, or why there are none; None where the run has no such call."""
    if where is None:
        return None
    item = Item(Path(where[0]), where[1])
    try:
        data = load(item.file("input"))
        after = load(item.file("output"))
        grads: dict[str, Any] = dict.fromkeys(("grad_inputs", "grad_outputs"))
        if gradients:
            grads = {part: tuple(load(item.file(part))["args"]) for part in grads}
    except (CaptureError, OSError) as error:
        return _Missing(f"its capture cannot be read: {error}", is_lost=True)
    header = data.get("__op_tools__") or {}
    captured = Captured(
        name=str(header.get("operator") or name),
        args=tuple(data["args"]),
        kwargs=dict(data.get("kwargs") or {}),
        outputs=tuple(after["args"]),
        written=_written(after.get("kwargs")),
        header=header,
        **grads,
    )
    return _Values(captured, gradients)


def _written(kwargs: Any) -> tuple[Any, ...]:
    found = kwargs.get("written") if isinstance(kwargs, dict) else None
    return tuple(found) if isinstance(found, tuple | list) else ()


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


def _judged(values: _Values | _Missing | None, allow: tuple[str, ...]) -> Side | None:
    if values is None:
        return None
    if isinstance(values, _Missing):
        return _side("not judged", values.reason, lost=values.is_lost)
    try:
        verdicts = _verdicts(values, allow)
    except _Lost as error:
        return _side("not judged", str(error), lost=True)
    except (_NotJudged, RefusedName, TooLarge, RecomputeError, NotImplementedError) as error:
        return _side("not judged", str(error))
    except Exception as error:  # one call that cannot be judged is no reason to stop
        return _side("not judged", f"{type(error).__name__}: {error}", lost=True)
    return _summed(verdicts)


def _summed(verdicts: Sequence[Verdict]) -> Side:
    """The worst verdict stands for the call."""
    found = [verdict for verdict in verdicts if verdict.status in JUDGED]
    if not found:
        reason = next(
            (verdict.reason for verdict in verdicts if verdict.reason), "it has no values to compare"
        )
        return _side("not judged", reason)
    worst = min(found, key=lambda verdict: (_WORST_FIRST.index(verdict.status), -_size(verdict)))
    return {
        **_side(worst.status, worst.reason),
        "allclose": worst.allclose,
        "cosine_similarity": worst.cosine_similarity,
        "max_abs_diff": worst.max_abs_diff,
        "max_relative_diff": worst.max_relative_diff,
        "error_over_bound": worst.error_over_bound,
        "output": verdicts.index(worst),
    }


def _size(verdict: Verdict) -> float:
    size = verdict.error_over_bound
    return verdict.max_abs_diff if math.isnan(size) else size


def _side(status: str, reason: str, lost: bool = False) -> Side:
    return {"status": status, "reason": " ".join(reason.split())[:_LONGEST_REASON], "lost": lost}


def _verdicts(values: _Values, allow: tuple[str, ...]) -> list[Verdict]:
    captured = values.captured
    func = _function(captured.name, allow)
    category = category_of(func, captured.name)
    if category in _NOT_JUDGED:
        raise _NotJudged(f"{category} calls are not judged")
    if missing := opaque_values(captured):
        raise _NotJudged(f"of an argument only a description was saved: {missing[0].type_name}")
    where = str(captured.header.get("device") or "")
    args, kwargs = place((captured.args, captured.kwargs), _CPU, captured_on=where, grads=False)
    random = values.is_random(allow)
    if values.gradients:
        if random:
            raise _NotJudged("gradients of a random call are judged at ATen level only")
        return _gradients(func, captured, args, kwargs)
    results = [_near(value) for value in flat_results(captured.outputs)]
    if random:
        return judge_random(captured.name, args, kwargs, results)
    reference = Recomputation(func, args, kwargs, autocast=_autocast(captured))
    # What the call wrote to without returning it follows the outputs; other tools save it as outputs.
    expected, unreturned = len(reference.own()), len(reference.written)
    if len(captured.written) == unreturned:
        results += [_near(value) for value in captured.written]
    complete = len(results) == expected
    if not complete and len(results) != expected - unreturned:
        raise _Lost(f"{len(results)} values were captured, the reference gives {expected}")
    verdicts = [
        judge(
            value,
            reference,
            index,
            category=category,
            tolerance=tolerance_for(captured.name, getattr(value, "dtype", type(value))),
        )
        for index, value in enumerate(results)
    ]
    if not complete and all(verdict.status != "fail" for verdict in verdicts):
        # Of some functions only running them tells that they write: nothing of it is in any capture.
        raise (_Lost if captured.written else _NotJudged)(
            f"the call writes to {unreturned} tensors that it does not return, {len(captured.written)} were captured"
        )
    return verdicts


def _gradients(
    func: Callable[..., Any], captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Verdict]:
    inputs = flat_tensors(captured.args, captured.kwargs)
    outputs = [value for value in flat_results(captured.outputs) if isinstance(value, torch.Tensor)]
    given, found = list(captured.grad_outputs or ()), list(captured.grad_inputs or ())
    if len(given) != len(outputs) or len(found) != len(inputs):
        raise _Lost("the captured gradients do not fit the call's inputs and outputs")
    wanted = [index for index, grad in enumerate(found) if grad is not None]
    if not wanted or all(grad is None for grad in given):
        raise _NotJudged("no gradients were captured")
    reference = Recomputation(
        func,
        args,
        kwargs,
        grad_outputs=[None if grad is None else _near(grad) for grad in given],
        wants_grad=wanted,
        autocast=_autocast(captured),
    )
    expected = reference.own()
    if any(grad is None for grad in expected):
        raise _NotJudged("the reference has no gradient where one was captured")
    return [
        judge(
            _near(found[place_]),
            reference,
            index,
            category="other",
            tolerance=tolerance_for(captured.name, found[place_].dtype),
        )
        for index, place_ in enumerate(wanted)
    ]


@functools.lru_cache(maxsize=4096)
def _function(name: str, allow: tuple[str, ...]) -> Callable[..., Any]:
    if not name:
        raise _NotJudged("the capture does not say which operator it is")
    return function_named(name, allow=allow)


def _near(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


_small_enough: set[Any] = set()


def _check_memory(func: Callable[..., Any], captured: Captured) -> None:
    """As replay does: a small file may ask for much memory. Asked once for calls of one kind."""
    results = (
        captured.outputs or (),
        captured.written,
        captured.grad_inputs or (),
        captured.grad_outputs or (),
    )
    tensors = flat_tensors([captured.args, *results], captured.kwargs)
    key = (func, *map(_layout_of, tensors), repr(_numbers(captured)))
    if len(key) < _LONGEST_REASON and key in _small_enough:
        return
    held = {
        id(tensor): sum(part.untyped_storage().nbytes() for part in parts_of(tensor)) for tensor in tensors
    }
    limit = limit_for(sum(held.values()), has_outputs=True)
    for tensor in tensors:
        # Judging a sparse tensor takes all the elements that it stands for.
        if tensor.layout is not torch.strided and tensor.numel() * tensor.element_size() > limit:
            raise TooLarge(f"a sparse tensor of {list(tensor.shape)} stands for more than {limit:,} bytes")
    check_memory(func, captured.args, captured.kwargs, limit)
    if len(_small_enough) > 100_000:
        _small_enough.clear()
    _small_enough.add(key)


def _layout_of(tensor: torch.Tensor) -> Any:
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return tensor.shape, strides, tensor.dtype, tensor.layout


def _numbers(captured: Captured) -> list[Any]:
    values = [*flat_results(list(captured.args)), *flat_results(dict(captured.kwargs))]
    return [value for value in values if not isinstance(value, torch.Tensor)]


def _autocast(captured: Captured) -> tuple[bool, torch.dtype] | None:
    said = captured.extra.get("autocast")
    if not isinstance(said, list | tuple) or len(said) != 2:
        return None
    dtype = said[1] if isinstance(said[1], torch.dtype) else getattr(torch, str(said[1])[6:], None)
    return (bool(said[0]), dtype) if isinstance(dtype, torch.dtype) else None
