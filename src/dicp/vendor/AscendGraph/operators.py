"""GE's operators as targets of FX nodes, each with the function that says what it computes.

One function an operator serves twice: on fake tensors it is the rule for shapes and dtypes, on tensors of the CPU it is what the
interpreter runs. Its positional parameters are the inputs of the operator's prototype in their order, its keywords the
attributes, with the prototype's defaults.

    @computes("Reshape", integers=("shape",))
    def reshape(x, shape, *, axis=0, num_axes=-1):
        return x.reshape(shape)

`integers` are inputs whose values decide about sizes: the function gets a number or a list of them in place of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dicp.dynamo_bridge.conversion import VendorOperator
from dicp.errors import InvalidGraphError
from dicp.vendor.AscendGraph.prototypes import Prototype, prototype

__all__ = [
    "AscendOperator",
    "computes",
    "computes_all",
    "known_operators",
    "operator_of",
    "require_one_dtype",
]

Computation = Callable[..., Any]
_OPERATORS: dict[str, AscendOperator] = {}


class AscendOperator(VendorOperator):
    """A type of GE."""

    def __init__(self, name: str, computation: Computation, integers: Sequence[str] = ()) -> None:
        self.name = name
        self.prototype: Prototype = prototype(name)
        self.integers = frozenset(integers)
        self.computation = computation

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        return self.computation(*args, **kwargs)


def computes(name: str, integers: Sequence[str] = ()) -> Callable[[Computation], Computation]:
    """Says what the operator of a type computes."""

    def declare(function: Computation) -> Computation:
        _OPERATORS[name] = AscendOperator(name, function, integers)
        return function

    return declare


def computes_all(functions: Mapping[str, Computation]) -> None:
    """Operators without attributes, by functions of their inputs."""
    for name, function in functions.items():
        computes(name)(function)


def known_operators() -> Mapping[str, AscendOperator]:
    """All types that can be written and interpreted."""
    import dicp.vendor.AscendGraph.semantics  # noqa: F401  (declares them)

    return _OPERATORS


def operator_of(type_: str) -> AscendOperator:
    """The operator of a type. Raises InvalidGraphError where nothing says what it computes."""
    found = known_operators().get(type_)
    if found is None:
        raise InvalidGraphError(
            f"{type_}: nothing says what it computes. Expected one of the types of dicp.vendor.AscendGraph.semantics."
        )
    return found


def require_one_dtype(name: str, *tensors: torch.Tensor | None) -> None:
    """GE converts no dtypes by itself."""
    found = {tensor.dtype for tensor in tensors if tensor is not None}
    if len(found) > 1:
        raise InvalidGraphError(f"{name} has operands of {' and '.join(sorted(map(str, found)))}")
