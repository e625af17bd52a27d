"""One case against the kernel that serves it: is it right, and if not, what is wrong with it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dicore.conformance.results import CaseResult
from dlinfer.conformance.calls import DeviceArguments, ReferenceRun, flat, titles
from dlinfer.conformance.sampling import Case
from dlinfer.errors import DlinferArgumentError
from dlinfer.interface import OPERATORS
from dlinfer.interface.declaration import Operator
from dlinfer.interface.registry import OVERLOADS
from dlinfer.reference.sparse import index_scores
from dlinfer.vendors.dispatch import Values, resolve, served_by
from op_tools.categories import Category
from op_tools.conformance import add_wrong_tensor, describe_value, record_verdict
from op_tools.verdict import Verdict, judge_all, tolerance_for

# What the reference may be off by, beside the largest element: roundings to the dtype of the case, and inner ones.
_ROUNDINGS, _INNER_ROUNDINGS = 8.0, 64.0
# Where an exact value is a tie within rounding, half of such runs come out on either side of it.
RUNS = 20
# Scores of picks that tie: relative to the largest, a few roundings of float32 sums.
TIE = 1e-5
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
    call = DeviceArguments(case.arguments, device, case.host)
    try:
        _called(OPERATORS[case.operator], call.arguments)
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
        call = DeviceArguments(self._case.arguments, self._device, self._case.host)
        try:
            returned = _called(self._operator, call.arguments)
            got = [_on_cpu(value) for value in flat(self._operator, returned, call.arguments)]
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
        for name in call.damaged(self._operator.writes):
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
        for index, (name, value, mine) in enumerate(zip(names, got, own, strict=True)):
            if problem := self._unlike(value, mine) or self._special(index, value, mine):
                self._reasons.append(add_wrong_tensor(self._result, name, value, mine, problem))
            elif not self._is_special(mine):
                if verdicts is None:
                    first = next((v for v in own if isinstance(v, Tensor)), None)
                    tolerance = tolerance_for(self._operator.name, None if first is None else first.dtype)
                    verdicts = judge_all(got, self._reference, category=self._category(), tolerance=tolerance)
                self._record(name, value, mine, verdicts[index])

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

    def _special(self, index: int, value: Any, mine: Any) -> str:
        if not isinstance(mine, Tensor) or not self._is_special(mine):
            return ""
        if self._operator.tolerance == "positions":
            return positions_problem(self._reference, value)
        return quantised_problem(self._reference, index, value)

    def _record(self, name: str, value: Any, mine: Any, verdict: Verdict) -> None:
        if not verdict.ok and self._leans_by_rows(verdict, value):
            verdict = replace(verdict, status="pass")
        if reason := record_verdict(self._result, name, value, mine, verdict):
            self._reasons.append(reason)

    def _leans_by_rows(self, verdict: Verdict, value: Any) -> bool:
        """A row of a norm shares one root: where it is rounded down, all elements of the row err to the same side.

        The verdict takes that for truncation if there are few rows. Every error and their mean must be within bounds; and
        in half dtypes, where elements are rounded far more coarsely than roots, it is truncation.
        """
        shared = "norm" in self._operator.name and value.dtype == torch.float32
        return shared and verdict.error_over_bound <= 1 and verdict.rms_ratio <= 1


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


# ---- results that are not plain arithmetic: quantised numbers, and chosen positions ----


def quantised_problem(reference: ReferenceRun, index: int, got: Tensor) -> str:
    """Each element must be one that the reference gives too, in float64 or from inputs moved by about one rounding."""
    own = reference.own()[index]
    if torch.equal(_numbers(got), _numbers(own)):
        return ""
    low = high = _numbers(own)
    truth = reference.truth()
    runs = [truth] if truth is not None else []
    for seed in range(RUNS):
        moved = reference.perturbed(seed)
        runs += [moved] if moved is not None else []
    for run in runs:
        low, high = torch.minimum(low, _numbers(run[index])), torch.maximum(high, _numbers(run[index]))
    wrong = (_numbers(got) < low) | (_numbers(got) > high) | (_numbers(got).isnan() != low.isnan())
    count = int(wrong.sum())
    return f"{count} of {got.numel()} quantised elements differ where no tie explains it" if count else ""


def _numbers(value: Tensor) -> Tensor:
    """As numbers; each half of a byte that holds two elements is a number of its own."""
    if value.dtype == torch.uint8:
        return torch.stack((value & 15, value >> 4), -1).to(torch.float64)
    return value.to(torch.float64)


def positions_problem(reference: ReferenceRun, got: Tensor) -> str:
    """Whether chosen positions are as good as the reference's."""
    arguments = {name: _upcast(value) for name, value in reference.kwargs.items()}
    if reference.operator.name == "lightning_indexer":
        return _indexed(arguments, got)
    return _routed(arguments, got)


def _upcast(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _indexed(arguments: dict[str, Any], got: Tensor) -> str:
    names = ("query", "key", "weights", "cu_seqlens_q", "kv_lengths", "block_table")
    start = 0
    for scores in index_scores(*(arguments[name] for name in names)):
        for row in scores:
            chosen = got[start, 0].to(torch.int64)
            chosen = chosen[chosen != -1]
            visible = int((row > -torch.inf).sum())
            wanted = min(visible, got.shape[-1])
            if len(chosen) != wanted:
                return f"token {start} has {len(chosen)} keys, expected {wanted}"
            if len(chosen.unique()) != wanted:
                return f"token {start} has a key twice"
            if wanted and (int(chosen.min()) < 0 or int(chosen.max()) >= row.numel()):
                return f"token {start} has a key outside of its sequence"
            best = row.topk(wanted).values
            if not _tie(row[chosen].sort(descending=True).values, best, row[row > -torch.inf]):
                return f"token {start} has keys of smaller scores than it could have"
            start += 1
    return ""


def _routed(arguments: dict[str, Any], got: Tensor) -> str:
    logits, groups = arguments["router_logits"], max(arguments["n_groups"], 1)
    weights = torch.softmax(logits, -1).flatten(0, -2)
    ids = got.flatten(0, -2)
    experts = weights.shape[-1]
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= experts):
        return "a number of an expert that does not exist"
    if ids.numel() and bool((ids.sort(-1).values.diff(dim=-1) == 0).any()):
        return "a token has an expert twice"
    size, each = experts // groups, ids.shape[-1] // groups
    for group in range(groups):
        mine = ids[:, group * each : (group + 1) * each]
        if bool((mine // size != group).any()):
            return f"group {group} has an expert of another group"
        best = weights[:, group * size : (group + 1) * size].topk(each).values
        if not _tie(weights.gather(1, mine), best, weights):
            return "an expert was chosen before one of larger weight"
    return ""


def _tie(got: Tensor, best: Tensor, among: Tensor) -> bool:
    if not got.numel():
        return True
    return bool(((got - best).abs() <= TIE * among.abs().max()).all())
