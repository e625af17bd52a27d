"""The operators that every backend is tried with, by kind."""

from __future__ import annotations

from dicp.conformance.declaration import OPERATORS
from dicp.conformance.operators import (  # noqa: F401  (each declares its operators)
    binary,
    factories,
    gradients,
    layers,
    memory,
    optimizers,
    products,
    reductions,
    unary,
    views,
)

__all__ = ["OPERATORS"]
