"""Calls an operator; what torch says about a value of a wrong type becomes an error that names the argument."""

from __future__ import annotations

import re
from typing import Any

import torch

from dlinfer.errors import DlinferArgumentError
from dlinfer.interface.registry import OVERLOADS

__all__ = ["OVERLOADS", "bits_of", "call"]

# torch's own words, the same in all versions that are supported.
_TYPE = re.compile(r"Expected a value of type '(.+?)' for argument '(.+?)' but instead found type '(.+?)'")


def bits_of(name: str, quant_bits: Any) -> int:
    """`quant_bits` as a number: None is 0, and frameworks have enumerations of policies."""
    if not isinstance(quant_bits, int | None):
        raise DlinferArgumentError(
            name, "quant_bits", f"is {quant_bits!r}, expected 0, 8 or 4 bits an element"
        )
    # Not operator.index: the compiler runs in circles there when it is given an enumeration.
    return int(quant_bits or 0)


def call(overload: Any, *args: Any) -> Any:
    """`overload(*args)`."""
    if torch.compiler.is_compiling():
        return overload(*args)
    try:
        return overload(*args)
    except (RuntimeError, TypeError) as error:
        found = _TYPE.search(str(error))
        if found is None:
            raise
        wanted, argument, given = found.groups()
        name = overload._schema.name.partition("::")[2]
        raise DlinferArgumentError(name, argument, f"is a {given}, expected {wanted}") from None
