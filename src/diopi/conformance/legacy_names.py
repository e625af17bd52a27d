"""Published names of operators (`add`, `batch_norm`) and the C functions they stand for."""

from __future__ import annotations

import re

from dicore.conformance.case_filter import SelectionError
from dicore.suggestions import closest
from diopi.conformance.case_files_source import ALIASES, camel
from diopi.conformance.diopi_case import interface_functions
from diopi.table import load

ALL = "all_ops"
_VARIANTS = ("Inp", "Scalar", "Tensor", "Backward", "V2", "V3", "All")


def snake(function: str) -> str:
    """`diopiBatchNorm` -> `batch_norm`: how success lines name a function."""
    bare = function.removeprefix("diopi")
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", bare)
    return split.lower().strip("_")


def _base(function: str) -> str:
    """A function without what says that it is a variant: in place, with a scalar, backward."""
    name = function
    while (end := next((v for v in _VARIANTS if name.endswith(v) and name != f"diopi{v}"), None)) is not None:
        name = name.removesuffix(end)
    return name.lower()


def functions_named(name: str, where: str = "") -> frozenset[str]:
    """The functions of a published name, with all variants; a C name is itself. SelectionError if there is none."""
    known = interface_functions(load())
    if name in known:
        return frozenset([name])
    wanted = {camel(name).lower(), _base(ALIASES.get(name, camel(name)))}
    found = frozenset(f for f in known if f.lower() in wanted or _base(f) in wanted)
    if not found:
        names = {snake(f) for f in known}
        close = closest(name, [*names, *known], most=3, cutoff=0.5)
        hint = f"; near are {', '.join(close)}" if close else ""
        raise SelectionError(f"{where + ': ' if where else ''}no operator is called {name!r}{hint}")
    return found
