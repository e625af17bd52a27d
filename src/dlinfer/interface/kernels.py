"""Registers functions as kernels of operators.

    kernel = Kernels()

    @kernel("rms_norm")
    def rms_norm(hidden_states, weight, epsilon): ...

A function names the arguments of the schema that it needs, in any order (`Operator.bind`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dicore.suggestions import did_you_mean
from dlinfer.interface import OPERATORS
from dlinfer.interface.declaration import Kernel

_F = TypeVar("_F", bound=Kernel)


class Kernels(dict[str, Kernel]):
    """Kernels by the operator's name, each of all arguments of the schema: what `Vendor.kernels` takes."""

    def __init__(self, prepare: Callable[[str, Kernel], Kernel] = lambda name, kernel: kernel) -> None:
        super().__init__()
        self._prepare = prepare

    def __call__(self, name: str) -> Callable[[_F], _F]:
        """The decorator for the kernel of an operator. The function itself stays as it is."""
        operator = OPERATORS.get(name)
        if operator is None:
            raise ValueError(f"there is no operator {name!r}.{did_you_mean(name, OPERATORS)}")
        if name in self:
            raise ValueError(
                f"{name} has a kernel already: {self[name].__module__}.{self[name].__qualname__}"
            )

        def register(function: _F) -> _F:
            self[name] = self._prepare(name, operator.bind(function))
            return function

        return register


reference = Kernels()
"""The reference of every operator: `@reference("rms_norm")` in `dlinfer.reference`."""
