"""The references: what a function of the interface should give, as the operator table says it.

An entry's `reference` is a Python expression over the C argument names (a keyword of Python gets an underscore:
`from_`). It gives the new value of everything the function writes, in the order of its arguments; a tuple where there
are several, None for a value that is not judged. It sees `torch`, `F` (torch.nn.functional), `math` and every public
function of the modules of this package, which hold what does not fit into an expression. Absent arguments are None, a
`diopiSize_t` is a list, an output is an empty tensor of the shape and dtype that the caller allocated (None if the
reference decides).

Nothing here is derived from the ATen mapping of the table: a swapped argument there must not be swapped here.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import CodeType
from typing import Any

import torch

from diopi.table import Entry


@cache
def _names() -> dict[str, Any]:
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": math}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, value in vars(module).items():
            own = getattr(value, "__module__", "") == module.__name__
            if own and not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value)):
                names[name] = value
    return names


@cache
def _compiled(expression: str, where: str) -> CodeType:
    return compile(expression, where, "eval")


def evaluate(entry: Entry, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """One value for each of `entry.written()`; raises what the expression raises."""
    if entry.reference is None:
        raise LookupError(f"{entry.name} has no reference in {entry.source}")
    given = {a.python_name: arguments.get(a.name) for a in entry.function.arguments}
    code = _compiled(entry.reference, f"<reference of {entry.name}>")
    value = eval(code, {**_names(), **given})
    values = value if isinstance(value, tuple) else (value,)
    if len(values) != len(entry.written()):
        raise ValueError(
            f"the reference of {entry.name} gives {len(values)} values; the function writes {[a.name for a in entry.written()]}"
        )
    return values
