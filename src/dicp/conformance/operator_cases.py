"""The cases of single operators: every form of call, with each dtype, compiled for fixed sizes and for any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dicore.conformance.cases import Case, case_id
from dicore.conformance.results import CaseResult
from dicp.conformance.compilation import Compilation
from dicp.conformance.declaration import OPERATORS, CallForm
from dicp.conformance.judging import InputsKept, judge_call
from dicp.conformance.programs import CallArguments, TensorFunction, function_of
from op_tools.conformance import describe_value

__all__ = ["OperatorCase", "OperatorSource", "run_operator_case"]

# Draws of values that the same compiled function is called with: what it kept from the first call would show in the second.
_DRAWS = (0, 1)


@dataclass(frozen=True, slots=True)
class OperatorCase(Case):
    """A form of call with a dtype, static or dynamic."""

    form: int = 0
    dynamic: bool = False

    def call_form(self) -> CallForm:
        return OPERATORS[self.function].forms[self.form]


def _declare_operators() -> None:
    import dicp.conformance.operators  # noqa: F401


class OperatorSource:
    """A group is an operator. Even numbers are static cases and odd ones dynamic, whichever of them are wanted."""

    name = "operators"

    def __init__(self, modes: tuple[bool, ...] = (False, True)) -> None:
        self.modes = modes
        _declare_operators()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a worker nothing is declared yet."""
        self.__dict__.update(state)
        _declare_operators()

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        return [name for name in sorted(OPERATORS) if functions is None or name in functions]

    def cases(self, group: str) -> Iterator[Case]:
        number = 0
        for index, form in enumerate(OPERATORS[group].forms):
            for dtype in form.dtypes:
                for dynamic in (False, True):
                    if dynamic in self.modes:
                        yield OperatorCase(
                            case_id(self.name, group, number),
                            group,
                            str(dtype).removeprefix("torch."),
                            f"{form.overload._overloadname} {'dynamic' if dynamic else 'static'}",
                            form=index,
                            dynamic=dynamic,
                        )
                    number += 1


@dataclass(frozen=True)
class _Calls:
    """What one call of the compiled function stands for."""

    title: str
    given: tuple[CallArguments, ...]
    program: TensorFunction


def run_operator_case(case: OperatorCase, compilation: Compilation, seed: int = 0) -> CaseResult:
    """Compiles the function once, calls it with several values (and sizes, if dynamic), and judges every result."""
    result = case.result("pass")
    form = case.call_form()
    dtype = getattr(torch, case.dtype)
    rounds = list(_dynamic_rounds(form, dtype, seed) if case.dynamic else _static_rounds(form, dtype, seed))
    compiled = compilation.compiled(rounds[0].program.function, dynamic=case.dynamic)
    kept: list[tuple[_Calls, Any]] = []
    reasons: list[str] = []
    for calls in rounds:
        leaves = [compilation.on_device(leaf) for leaf in calls.program.leaves]
        inputs = InputsKept(leaves)
        kept.append((calls, compiled(*leaves)))
        reasons += inputs.problems(calls.title)
    # Judged at the end: no later call may change what an earlier one gave.
    for calls, results in kept:
        for number, (given, got) in enumerate(zip(calls.given, results, strict=True)):
            title = calls.title if len(calls.given) == 1 else f"{calls.title} call {number}"
            reasons += judge_call(
                result, title, got, form.overload, given, compares_values=form.compares_values
            )
    compilation.conclude(result, reasons)
    if result.status == "fail":
        result.arguments = [_described(given) for given in rounds[0].given]
    return result


def _static_rounds(form: CallForm, dtype: torch.dtype, seed: int) -> Iterator[_Calls]:
    """Calls with all sizes are one function: compiling costs more than calling."""
    for draw in _DRAWS:
        given = tuple(form.arguments(size.static, dtype, 2 * seed + draw) for size in form.sizes)
        program = function_of([(form.overload, arguments) for arguments in given])
        yield _Calls(f"values {draw}:", given, program)


def _dynamic_rounds(form: CallForm, dtype: torch.dtype, seed: int) -> Iterator[_Calls]:
    first: TensorFunction | None = None
    for draw in _DRAWS:
        for size in form.sizes:
            given = form.arguments(size.dynamic, dtype, 2 * seed + draw)
            program = function_of([(form.overload, given)])
            first = first or program
            # Settings that follow from the sizes are another program.
            if program.source == first.source:
                yield _Calls(f"size {list(size.dynamic)}:", (given,), program)


def _described(given: CallArguments) -> str:
    texts = [describe_value(value) for value in given.args]
    texts += [f"{name}={describe_value(value)}" for name, value in given.kwargs.items()]
    return ", ".join(texts)
