"""Verdicts as results of conformance cases: what the suites of diopi, dicp and dlinfer say about a wrong tensor.

`dicore.conformance` knows no tensors; this is the part of the kit that does.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from dicore.conformance.results import CaseResult, WrongElement, WrongTensor
from op_tools.describe import dtype_name
from op_tools.verdict import Verdict

__all__ = ["add_wrong_tensor", "describe_value", "record_verdict", "worst_elements"]

_SHOWN = 5
_LONGEST = 8


def record_verdict(result: CaseResult, name: str, got: Any, expected: Any, verdict: Verdict) -> str:
    """Notes what a verdict says about one output of a case; the reason of the failure, empty if it is none."""
    over = verdict.error_over_bound
    if not math.isnan(over):
        result.error_over_bound = max(result.error_over_bound or 0.0, over)
    if verdict.status == "lower_precision" and result.status == "pass" and not result.reason:
        result.reason = f"{name}: {verdict.reason}"
    if verdict.ok:
        return ""
    return add_wrong_tensor(result, name, got, expected, verdict.reason or verdict.error_info)


def add_wrong_tensor(result: CaseResult, name: str, got: Any, expected: Any, reason: str) -> str:
    """Notes an output that is wrong, with its worst elements; the reason with its name."""
    shape = list(got.shape) if isinstance(got, torch.Tensor) else []
    dtype = str(getattr(got, "dtype", type(got).__name__)).removeprefix("torch.")
    result.wrong.append(WrongTensor(name, shape, dtype, reason, worst_elements(got, expected)))
    return f"{name}: {reason}"


def describe_value(value: Any) -> str:
    """An argument in one line: `float32[3, 4] strides [8, 2] offset 1`."""
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        shown = ", ".join(describe_value(item) for item in value[:_LONGEST])
        return f"[{shown}{', ...' if len(value) > _LONGEST else ''}]"
    return repr(value)


def _describe_tensor(value: torch.Tensor) -> str:
    text = f"{dtype_name(value.dtype)}{list(value.shape)}"
    if not value.is_contiguous():
        text += f" strides {list(value.stride())}"
    if value.storage_offset():
        text += f" offset {value.storage_offset()}"
    if 0 < value.numel() <= _LONGEST and value.layout == torch.strided:
        text += f" = {value.tolist()}"
    return text


def worst_elements(got: Any, expected: Any) -> list[WrongElement]:
    """The elements that are off most, first the worst."""
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return [WrongElement([], str(expected), str(got))]
    if got.shape != expected.shape or not got.numel():
        return []
    one, other = (_upcast(value).reshape(-1) for value in (got, expected))
    error = (one - other).abs()
    agrees = (one == other) | (one.isnan() & other.isnan())
    severity = torch.where(agrees, -1.0, error.nan_to_num(float("inf"), float("inf")))
    worst = severity.topk(min(_SHOWN, severity.numel())).indices
    flat_got, flat_expected = got.reshape(-1), expected.reshape(-1)
    return [
        WrongElement(
            [int(i) for i in torch.unravel_index(torch.tensor(index), got.shape)] if got.dim() else [],
            _number(flat_expected[index]),
            _number(flat_got[index]),
            f"{float(error[index]):.3g}",
        )
        for index in worst.tolist()
        if severity[index] >= 0
    ]


def _upcast(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _number(value: torch.Tensor) -> str:
    number = value.item()
    return f"{number:.9g}" if isinstance(number, float) else str(number)
