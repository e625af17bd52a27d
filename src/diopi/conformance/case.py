"""What a case is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """One call of one function: the values of its arguments, by their names in C.

    Tensors are CPU tensors whose strides and storage offset the device's tensors will have. An argument that is
    missing or None is NULL. For an output argument a tensor only says shape, strides and dtype; an output that is
    not given is allocated as the reference's result is. Lists of tensors are lists, a `diopiSize_t` is a list of int, a
    `diopiScalar_t` a number, an enumeration an int, a generator a seed.
    """

    id: str
    """`source:group:number`; names the case for good and reruns it alone."""
    function: str
    arguments: dict[str, Any]
    dtype: str
    """The dtype the case is about, for filters and the matrix of the report."""
    label: str = ""
    """What is special about it: a layout, a range of values, a module of a model."""

    @property
    def source(self) -> str:
        return self.id.partition(":")[0]
