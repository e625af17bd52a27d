"""What a case of this suite is, and which functions it is about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dicore.conformance.cases import Case
from diopi.table import OperatorTable

__all__ = ["DiopiCase", "interface_functions"]

# Headers whose operators a full run must cover.
_COVERED_HEADERS = ("functions.h", "functions_ext.h")


@dataclass(frozen=True, slots=True)
class DiopiCase(Case):
    """One call of one C function: the values of its arguments, by their names in C.

    Tensors are CPU tensors whose strides and storage offset the device's tensors will have. An argument that is
    missing or None is NULL. For an output argument a tensor only says shape, strides and dtype; an output that is
    not given is allocated as the reference's result is. Lists of tensors are lists, a `diopiSize_t` is a list of int, a
    `diopiScalar_t` a number, an enumeration an int, a generator a seed.
    """

    arguments: dict[str, Any] = field(default_factory=dict)


def interface_functions(table: OperatorTable) -> frozenset[str]:
    """The operators that a vendor is asked for: what a full run must cover."""
    return frozenset(
        f.name
        for f in table.functions.values()
        if f.header in _COVERED_HEADERS and f.returns == "diopiError_t"
    )
