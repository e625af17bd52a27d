"""The suite's own samples: for every function a few calls that show what it does, each in many variations.

A sample function is given a `Maker` and yields dictionaries of arguments by their names in C:

    @samples("diopiAdd", "diopiSub")
    def binary(make: Maker) -> Iterator[Sample]:
        yield {"input": make(3, 4), "other": make(4), "alpha": 2}

It is called once for every variation (dtype, layout, range of values); `make` applies the variation to the tensors it
makes. What a sample function draws must come from `make`, so that the same seed gives the same case. Modules of this
package are imported by `load()`; a module holds one family of operators.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from diopi.conformance.samples.maker import LAYOUTS, VALUES, Maker

__all__ = ["LAYOUTS", "VALUES", "Maker", "Sample", "SampleFunction", "load", "samples"]

Sample = dict[str, Any]
SampleFunction = Callable[[Maker], Iterator[Sample]]

_registry: dict[str, list[SampleFunction]] = {}


def samples(*functions: str) -> Callable[[SampleFunction], SampleFunction]:
    """Registers a sample function for the C functions it serves."""

    def register(made: SampleFunction) -> SampleFunction:
        for name in functions:
            _registry.setdefault(name, []).append(made)
        return made

    return register


@cache
def load() -> dict[str, list[SampleFunction]]:
    """C function -> its sample functions, of all modules of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _registry
