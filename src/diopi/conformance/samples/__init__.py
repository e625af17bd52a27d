"""The suite's own samples: for every function a few calls that show what it does, each in many variations.

A sample function is given a `Maker` and yields dictionaries of arguments by their names in C:

    @samples("diopiAdd", "diopiSub")
    def binary(make: Maker) -> Iterator[Sample]:
        yield {"input": make(3, 4), "other": make(4), "alpha": 2}

It is called once for every variation (dtype, layout, range of values); `make` applies the variation to the tensors it
makes. What a sample function draws must come from `make`, so that the same seed gives the same case. Where samples need no
code they are rows of a `table`, in which a tuple is the shape of a tensor:

    table("diopiFlip", "input dims", ((3, 5), [0]), ((2, 3, 4), [-1]))

Modules of this package are imported by `load()`; a module holds one family of operators.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from diopi.conformance.samples.maker import LAYOUTS, VALUES, Maker
from diopi.table import load as load_operators

__all__ = [
    "LAYOUTS",
    "VALUES",
    "Maker",
    "Row",
    "Sample",
    "SampleFunction",
    "load",
    "number",
    "samples",
    "table",
]

Sample = dict[str, Any]
SampleFunction = Callable[[Maker], Iterator[Sample]]
Row = tuple[Any, ...]

_registry: dict[str, list[SampleFunction]] = {}


def samples(*functions: str) -> Callable[[SampleFunction], SampleFunction]:
    """Registers a sample function for the C functions it serves."""

    def register(made: SampleFunction) -> SampleFunction:
        for name in functions:
            _registry.setdefault(name, []).append(made)
        return made

    return register


def table(
    functions: str, columns: str, *rows: Row, floating: Sequence[Row] = (), **ranges: tuple[float, float]
) -> SampleFunction:
    """Registers a sample for each row, whose values are the arguments `columns`, the last of which may be missing.

    A tuple is the shape of a tensor (drawn between the limits that `ranges` has for its column), a list may hold such
    shapes, a function is called with the `Maker`; anything else is the argument itself. `floating`: more rows, for dtypes
    that are not integers.
    """

    def made(make: Maker) -> Iterator[Sample]:
        written = {argument.name for argument in load_operators().entries[make.function].written()}

        def argument(column: str, value: Any) -> Any:
            match value:
                case tuple():
                    low, high = ranges.get(column, (None, None))
                    return make(*value, low=low, high=high, written=column in written)
                case list():
                    return [argument(column, item) for item in value]
            return value(make) if callable(value) else value

        for row in (*rows, *(floating if make.floating else ())):
            yield {
                column: argument(column, value) for column, value in zip(columns.split(), row, strict=False)
            }

    return samples(*functions.split())(made)


def number(make: Maker, real: float = -2.5, whole: int = 1) -> float | int:
    """A number that the dtype can hold."""
    return real if make.floating else whole


@cache
def load() -> dict[str, list[SampleFunction]]:
    """C function -> its sample functions, of all modules of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _registry
