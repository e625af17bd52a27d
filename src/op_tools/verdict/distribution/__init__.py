"""Judges random operators by their distribution and their algebra, since no reference gives the same values.

An operator's law (`laws`, `discrete_laws`, `picks`, `masks`) looks at every value: NaN, range, what dropout keeps. What is
random in the results becomes draws, and draws become points of [0, 1] that are uniform and independent exactly if the generator
is right (`draws`). One battery of tests judges them (`battery`), after a look for numbers that come again (`repeats`). All
tests together accuse a right generator once in a million calls (`evidence`). `operators` says which law an operator follows.
The files beside this one are copied into reproduction files: they need torch alone, and are written for old interpreters too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from op_tools.categories import base_name
from op_tools.verdict.distribution.draws import NotJudged
from op_tools.verdict.distribution.evidence import LEVEL
from op_tools.verdict.distribution.operators import LAWS, what_is_wrong
from op_tools.verdict.outcome import Status, Verdict
from op_tools.verdict.tolerance import Tolerance

__all__ = ["LEVEL", "judge_random", "knows_distribution", "operator_of"]

# torch.nn.init.uniform_(x, a=-1, b=1) is not x.uniform_(-1, 1): what it calls is judged.
_OTHER_ARGUMENTS = "torch.nn.init."
_IN_PLACE = re.compile(r"[a-z]_(\.|$)")


def judge_random(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    results: Sequence[Any],
    *,
    tolerance: Tolerance | None = None,
    level: float = LEVEL,
    seen: Callable[[int], str] | None = None,
    thorough: bool = True,
) -> list[Verdict]:
    """Judge the flat results of one random call; `args` and `kwargs` hold the inputs as before the call.

    `level`: the share of right calls that may be accused. `seen` and `thorough`: see `what_is_wrong`.
    """
    tolerance = tolerance or Tolerance(0.0, 0.0)
    tensors = [value for value in results if isinstance(value, torch.Tensor)]
    if any(value.device.type == "meta" for value in tensors):
        return [Verdict.plain("skipped", "has no values (meta tensor)", tolerance) for _ in results]
    if tensors and not any(value.numel() for value in tensors):
        return [Verdict.plain("pass", "draws nothing", tolerance) for _ in results]
    try:
        if not knows_distribution(name):
            raise NotJudged
        wrong = what_is_wrong(*operator_of(name), args, kwargs, results, level, seen, thorough)
    except NotJudged:
        wrong = _not_finite(args, kwargs, tensors)
        if not wrong:
            reason = "not judged: nothing is known about its distribution; values are finite"
            return [Verdict.plain("skipped", reason, tolerance) for _ in results]
    status: Status = "fail" if wrong else "pass"
    reason = wrong or "agrees with its distribution"
    return [Verdict.plain(status, reason, tolerance) for _ in results]


def operator_of(name: str) -> tuple[str, bool]:
    """What `what_is_wrong` calls an operator, and whether it fills its first argument: x.normal_(mean, std) does."""
    return base_name(name), _IN_PLACE.search(name) is not None


def knows_distribution(name: str) -> bool:
    """Whether there is a law for the operator of that name, in the order of its arguments."""
    return base_name(name) in LAWS and not name.startswith(_OTHER_ARGUMENTS)


def _not_finite(args: Sequence[Any], kwargs: Mapping[str, Any], results: list[torch.Tensor]) -> str:
    """A NaN that no input explains; masks may empty a whole row, which is one."""
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if any(value.dtype == torch.bool or not bool(value.isfinite().all()) for value in inputs):
        return ""
    # Only the first result: what else an attention kernel returns (sums padded with Inf, seeds) is its own business.
    broken = sum(int(value.isnan().sum()) for value in results[:1] if value.is_floating_point())
    return f"{broken} values are NaN" if broken else ""
