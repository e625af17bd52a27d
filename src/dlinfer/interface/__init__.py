"""What the operators are. `OPERATORS` has their declarations by name; `registry` defines them for torch."""

from __future__ import annotations

from dlinfer.interface import attention, cache, layers, matmul, moe, sparse
from dlinfer.interface.declaration import Operator

__all__ = ["OPERATORS", "Operator"]

_FAMILIES = (layers, cache, attention, sparse, matmul, moe)
OPERATORS: dict[str, Operator] = {
    operator.name: operator for family in _FAMILIES for operator in family.OPERATORS
}
