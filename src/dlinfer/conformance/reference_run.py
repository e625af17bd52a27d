"""The reference's answers to one case: in the case's dtypes, in float64, and with inputs that moved a little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dlinfer.conformance.case import Case
from dlinfer.conformance.memory import Placed
from dlinfer.interface.declaration import Operator
from dlinfer.reference import KERNELS
from op_tools.reference import Reference

# The dtype of a result follows the precision; what is quantised to, does not.
_UPCAST_DTYPES = ("out_dtype",)


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


class ReferenceRun(Reference):
    """One case on the CPU; every answer is computed when it is asked for."""

    def __init__(self, operator: Operator, case: Case) -> None:
        self.operator = operator
        self.func = KERNELS[operator.name]
        self.kwargs = operator.bound((), case.arguments)

    def evaluate(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], grad_outputs: Any, *, upcast: bool
    ) -> list[Any]:
        # Copies, since the call writes to some of them: into the caches, say.
        arguments = Placed(dict(kwargs), "cpu").arguments
        for name, value in self.kwargs.items() if upcast else ():
            if isinstance(value, torch.dtype) and name not in _UPCAST_DTYPES:
                arguments[name] = value
        return flat(self.operator, KERNELS[self.operator.name](**arguments), arguments)
