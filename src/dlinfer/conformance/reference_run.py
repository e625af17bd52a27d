"""The reference's answers to one case: in the case's dtypes, in float64, and with inputs that moved a little.

What a verdict of op_tools asks for (`op_tools.verdict.Reference`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dlinfer.conformance.case import Case
from dlinfer.conformance.memory import Placed
from dlinfer.interface.declaration import Operator
from dlinfer.reference import KERNELS
from op_tools.reference.perturbation import ROUNDING, Factors, InnerRoundings

_SIGNIFICANT = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# One more sample of the reference's errors: so far that roundings fall anew, so little that nothing else changes.
_NUDGED_BITS = 13
# The dtype of a result follows the precision; what is quantised to, does not.
_RAISED_DTYPES = ("out_dtype",)


def flat(operator: Operator, result: Any, arguments: dict[str, Any]) -> list[Any]:
    """What a call returned, then what it wrote, in the order of the schema."""
    returned = list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]
    written = [arguments[name] for name in operator.writes if arguments.get(name) is not None]
    return returned + written


def titles(operator: Operator, arguments: dict[str, Any]) -> list[str]:
    """Names for what `flat` gives."""
    count = len(operator.parsed.returns)
    returned = ["result"] if count == 1 else [f"result {place}" for place in range(count)]
    return returned + [name for name in operator.writes if arguments.get(name) is not None]


class ReferenceRun:
    """One case on the CPU; every answer is computed when it is asked for."""

    def __init__(self, operator: Operator, case: Case) -> None:
        self.operator = operator
        self.func: Callable[..., Any] = KERNELS[operator.name]
        self.kwargs = operator.bound((), case.arguments)
        self.args: tuple[Any, ...] = ()
        self.grad_outputs = None
        self._own: list[Any] | None = None
        self._truth: list[Any] | None = None

    def own(self) -> list[Any]:
        if self._own is None:
            placed = Placed(self.kwargs, "cpu").arguments
            self._own = self._run(placed)
        return self._own

    def truth(self) -> list[Any] | None:
        if self._truth is None:
            self._truth = self._run(self.changed(_raised))
        return self._truth

    def perturbed(self, seed: int) -> list[Any] | None:
        factors = Factors(seed, ROUNDING)
        with InnerRoundings(factors):
            return self._run(self.changed(lambda value: factors.applied(_raised(value))))

    def variant(self, seed: int) -> tuple[list[Any], list[Any]] | None:
        def nudged(value: Tensor) -> Tensor:
            if value.dtype not in _SIGNIFICANT:
                return value.clone()
            step = 2.0 ** (1 - min(_SIGNIFICANT[value.dtype], _NUDGED_BITS))
            return Factors(seed, step).applied(value.double()).to(value.dtype)

        moved = self.changed(nudged, raise_dtypes=False)
        raised = {
            name: _raised(value) if isinstance(value, Tensor) else value for name, value in moved.items()
        }
        return self._run(moved), self._run(self._dtypes_raised(raised))

    def changed(self, change: Callable[[Tensor], Tensor], *, raise_dtypes: bool = True) -> dict[str, Any]:
        """The arguments with every tensor changed; nothing shares memory with anything."""
        found = {
            name: change(value) if isinstance(value, Tensor) else value for name, value in self.kwargs.items()
        }
        return self._dtypes_raised(found) if raise_dtypes else found

    def _dtypes_raised(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: torch.float64 if name in _RAISED_DTYPES else value for name, value in arguments.items()}

    def _run(self, arguments: dict[str, Any]) -> list[Any]:
        return flat(self.operator, self.func(**arguments), arguments)


def _raised(value: Tensor) -> Tensor:
    return value.to(torch.float64) if value.is_floating_point() else value.clone()
