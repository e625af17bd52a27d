"""What the operators are. `OPERATORS` has their declarations by name; `registry` defines them for torch."""

from __future__ import annotations

from dlinfer.interface import (
    activation,
    attention,
    batches,
    cache,
    linear,
    moe,
    norms,
    quantised,
    rotary,
    sparse,
)
from dlinfer.interface.declaration import Operator

__all__ = ["OPERATORS", "Operator"]

_FAMILIES = (norms, activation, rotary, cache, attention, batches, sparse, linear, quantised, moe)
OPERATORS: dict[str, Operator] = {
    operator.name: operator for family in _FAMILIES for operator in family.OPERATORS
}
