"""Whether what a compiled function gave is what eager PyTorch gives: values by the verdict, and all that a user may rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dicore.conformance.results import CaseResult
from dicp.conformance.programs import CallArguments
from op_tools.categories import Category, category_of
from op_tools.conformance import add_wrong_tensor, record_verdict
from op_tools.reference import Recomputation, Reference
from op_tools.trees import flat_results
from op_tools.verdict import judge_all, tolerance_for

__all__ = ["InputsKept", "judge_call", "judge_results"]


def judge_call(
    result: CaseResult,
    title: str,
    got: Any,
    called: Callable[..., Any],
    given: CallArguments,
    *,
    compares_values: bool = True,
) -> list[str]:
    """What is wrong with the results of one call of an operator; each problem is noted in the case's result too."""
    reference = Recomputation(called, given.args, given.kwargs)
    category = category_of(called, reference.name)
    if not compares_values:
        category = "uninitialised"
    elif category in ("random", "uninitialised"):
        category = "other"  # the call is such that its values are determined
    return judge_results(result, title, flat_results(got), reference, category)


def judge_results(
    result: CaseResult, title: str, got: Sequence[Any], reference: Reference, category: Category
) -> list[str]:
    """What is wrong with flat results, beside what a reference says."""
    own = reference.own()
    if len(got) != len(own):
        return [f"{title}: gave {len(got)} results, expected {len(own)}"]
    names = [f"{title} result {index}" if len(own) > 1 else f"{title} result" for index in range(len(own))]
    unlike = [problem_of_type(value, mine) for value, mine in zip(got, own, strict=True)]
    found = [
        add_wrong_tensor(result, name, value, mine, problem)
        for name, value, mine, problem in zip(names, got, own, unlike, strict=True)
        if problem
    ]
    if found:
        return found
    tensors = [value for value in own if isinstance(value, Tensor)]
    tolerance = tolerance_for(reference.name, tensors[0].dtype if tensors else None)
    verdicts = judge_all([_on_cpu(value) for value in got], reference, category=category, tolerance=tolerance)
    for name, value, mine, verdict in zip(names, got, own, verdicts, strict=True):
        if reason := record_verdict(result, name, _on_cpu(value), mine, verdict):
            found.append(reason)
    return found


def problem_of_type(value: Any, mine: Any) -> str:
    """What no compiler may change: kind, dtype, shape, strides."""
    if isinstance(value, Tensor) != isinstance(mine, Tensor):
        return f"is a {type(value).__name__}, expected a {type(mine).__name__}"
    if not isinstance(value, Tensor):
        return ""
    if value.dtype != mine.dtype or value.shape != mine.shape:
        return f"is {value.dtype} {list(value.shape)}, expected {mine.dtype} {list(mine.shape)}"
    if _significant(value) != _significant(mine):
        return f"has the strides {list(value.stride())}, expected {list(mine.stride())}"
    return ""


def _significant(value: Tensor) -> list[int]:
    """The strides that say where elements are."""
    if value.layout is not torch.strided or not value.numel():
        return []
    return [stride for stride, length in zip(value.stride(), value.shape, strict=True) if length > 1]


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


class InputsKept:
    """The tensors that a function is given, which it must leave as they are."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._before = [tensor.clone() for tensor in self._tensors]

    def problems(self, title: str) -> Iterator[str]:
        """The inputs that were written to."""
        for number, (tensor, before) in enumerate(zip(self._tensors, self._before, strict=True)):
            if not torch.equal(_bits(tensor), _bits(before)):
                yield f"{title}: wrote to its input {number}"


def _bits(value: Tensor) -> Tensor:
    if not value.is_floating_point():
        return value
    return value.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()])
