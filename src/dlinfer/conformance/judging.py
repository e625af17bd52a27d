"""One case against the kernel that serves it: is it right, and if not, what is wrong with it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dicore.conformance.results import CaseResult
from dlinfer.conformance.case import Case
from dlinfer.conformance.integers import positions_problem, quantised_problem
from dlinfer.conformance.memory import Placed
from dlinfer.conformance.reference_run import ReferenceRun, flat, titles
from dlinfer.errors import DlinferArgumentError
from dlinfer.interface import OPERATORS
from dlinfer.interface.declaration import Operator
from dlinfer.interface.registry import OVERLOADS
from dlinfer.vendors.dispatch import Values, resolve, served_by
from op_tools.categories import Category
from op_tools.conformance import add_wrong_tensor, describe_value, record_verdict
from op_tools.verdict import Verdict, judge_all, tolerance_for

# What the reference may be off by, beside the largest element: roundings to the dtype of the case, and inner ones.
_ROUNDINGS, _INNER_ROUNDINGS = 8.0, 64.0
_CATEGORIES: dict[str, Category] = {"exact": "movement", "elementwise": "other", "sum": "matmul"}


def check(case: Case, vendor: str, device: str) -> CaseResult:
    """Runs and judges a case; never raises for what a kernel does."""
    begin = time.perf_counter()
    result = CaseResult(case.id, case.operator, case.dtype, case.label, "pass")
    kind = torch.device(device).type
    if served_by(case.operator, kind).name != vendor:
        result.status = "unsupported"
        result.reason = (
            f"{vendor} has no kernel for it on {kind}: it falls to {served_by(case.operator, kind).name}"
        )
    elif case.refuses:
        _refused(case, device, result)
    else:
        _Check(case, device, result).run()
    if result.status == "fail":
        result.arguments = [f"{name} = {describe_value(value)}" for name, value in case.arguments.items()]
    result.seconds = time.perf_counter() - begin
    return result


def _called(operator: Operator, arguments: dict[str, Any]) -> Any:
    """Through torch's dispatcher, so that checks, rules and the choice of the kernel are tried too."""
    bound = operator.bound((), arguments)
    return OVERLOADS[operator.name](*bound.values())


def _refused(case: Case, device: str, result: CaseResult) -> None:
    kind = torch.device(device).type
    trusted = resolve(case.operator, kind).values is Values.CHEAP and case.refuses not in case.host
    if kind != "cpu" and trusted:
        result.status, result.reason = (
            "skipped",
            f"{case.refuses} is not looked at on {kind} (DLINFER_CHECK=1 does)",
        )
        return
    placed = Placed(case.arguments, device, case.host)
    try:
        _called(OPERATORS[case.operator], placed.arguments)
    except DlinferArgumentError as error:
        if error.argument == case.refuses:
            return
        result.reason = f"the error names {error.argument!r} instead of {case.refuses!r}: {error}"
    except Exception as error:
        result.reason = f"raised {type(error).__name__} instead of DlinferArgumentError: {_line(error)}"
    else:
        result.reason = f"accepted a bad {case.refuses}"
    result.status = "fail"


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


class _Check:
    def __init__(self, case: Case, device: str, result: CaseResult) -> None:
        self._operator = OPERATORS[case.operator]
        self._case = case
        self._device = device
        self._result = result
        self._reference = ReferenceRun(self._operator, case)
        self._reasons: list[str] = []

    def run(self) -> None:
        if problem := self._reference_problem():
            self._result.status, self._result.reason = "fail", problem
            return
        placed = Placed(self._case.arguments, self._device, self._case.host)
        try:
            returned = _called(self._operator, placed.arguments)
            got = [_on_cpu(value) for value in flat(self._operator, returned, placed.arguments)]
        except NotImplementedError as error:
            self._result.status, self._result.reason = "unsupported", _line(error)
            return
        except Exception as error:
            self._result.status, self._result.reason = (
                "fail",
                f"raised {type(error).__name__}: {_line(error)}",
            )
            return
        self._judge(got)
        for name in placed.damaged(self._operator.writes):
            self._reasons.append(f"{name}: changed where nothing may be written")
        if self._reasons:
            self._result.status, self._result.reason = "fail", "; ".join(self._reasons)

    def _reference_problem(self) -> str:
        """The reference itself must agree with its float64 run: a kernel that equals it is not judged any further."""
        truth = self._reference.truth()
        for mine, exact in zip(self._reference.own(), truth or (), strict=False):
            if not isinstance(mine, Tensor) or not mine.is_floating_point() or mine.element_size() == 1:
                continue
            error = (mine.double() - exact.double()).nan_to_num(0, 0, 0).abs()
            if not error.numel():
                continue
            form = torch.finfo(getattr(torch, self._case.dtype))
            largest = float(exact.double().nan_to_num(0, 0, 0).abs().max())
            bound = (_ROUNDINGS * form.eps + _INNER_ROUNDINGS * torch.finfo(torch.float32).eps) * largest
            if float(error.max()) > bound + form.smallest_normal * form.eps:
                return f"the reference is off by {float(error.max()):.3g} from its own result in float64"
        return ""

    def _judge(self, got: list[Any]) -> None:
        own = self._reference.own()
        names = titles(self._operator, self._case.arguments)
        if len(got) != len(own):
            self._reasons.append(f"gave {len(got)} results, expected {len(own)}")
            return
        verdicts: list[Verdict] | None = None
        for place, (name, value, mine) in enumerate(zip(names, got, own, strict=True)):
            if problem := self._unlike(value, mine) or self._special(place, value, mine):
                self._reasons.append(add_wrong_tensor(self._result, name, value, mine, problem))
            elif not self._is_special(mine):
                if verdicts is None:
                    first = next((v for v in own if isinstance(v, Tensor)), None)
                    tolerance = tolerance_for(self._operator.name, None if first is None else first.dtype)
                    verdicts = judge_all(got, self._reference, category=self._category(), tolerance=tolerance)
                self._record(name, value, mine, verdicts[place])

    def _category(self) -> Category:
        if self._operator.name == "fill_kv_cache":
            return "movement"
        return _CATEGORIES.get(self._operator.tolerance, "matmul")

    def _unlike(self, value: Any, mine: Any) -> str:
        """What no kernel may differ in."""
        if isinstance(value, Tensor) != isinstance(mine, Tensor):
            return f"is a {type(value).__name__}, expected a {type(mine).__name__}"
        if not isinstance(value, Tensor):
            return "" if value == mine else f"is {value}, expected {mine}"
        if value.shape != mine.shape or value.dtype != mine.dtype:
            return f"is {value.dtype} {list(value.shape)}, expected {mine.dtype} {list(mine.shape)}"
        return ""

    def _is_special(self, mine: Any) -> bool:
        """Integers and 8-bit floats are not judged as arithmetic."""
        if not isinstance(mine, Tensor):
            return True
        return self._operator.tolerance in ("quantised", "positions") and (
            not mine.is_floating_point() or mine.element_size() == 1
        )

    def _special(self, place: int, value: Any, mine: Any) -> str:
        if not isinstance(mine, Tensor) or not self._is_special(mine):
            return ""
        if self._operator.tolerance == "positions":
            return positions_problem(self._reference, value)
        return quantised_problem(self._reference, place, value)

    def _record(self, name: str, value: Any, mine: Any, verdict: Verdict) -> None:
        if not verdict.ok and self._leans_by_rows(verdict, value):
            verdict = replace(verdict, status="pass")
        if reason := record_verdict(self._result, name, value, mine, verdict):
            self._reasons.append(reason)

    def _leans_by_rows(self, verdict: Verdict, value: Any) -> bool:
        """A row of a norm shares one root: where it is rounded down, all elements of the row err to the same side.

        The verdict takes that for truncation if there are few rows. Every error and their mean must be within bounds; and
        in the halves, where elements are rounded far more coarsely than roots, it is truncation.
        """
        shared = "norm" in self._operator.name and value.dtype == torch.float32
        return shared and verdict.error_over_bound <= 1 and verdict.rms_ratio <= 1


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value
