"""The declaration of one operator, from which everything else follows.

A declaration has the schema that torch is told, functions that check arguments and give the shapes of results without
computing them, and the words of the documentation. The functions take the arguments of the schema by the same names, in
the same order and with the same defaults; so do the kernels of a vendor. A test holds them against the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch

NAMESPACE = "dlinfer"

Tolerance = Literal["exact", "elementwise", "sum", "quantised", "positions"]
"""How results of a vendor are judged beside the reference in float64.

- exact: bit for bit, nothing is computed.
- elementwise: arithmetic on single elements; sum: sums of products. Both within what rounding explains.
- quantised: rounded to integers inside; integers may be the neighbour only where the exact value is a tie within rounding.
- positions: chosen positions; others are as good where the values they choose tie within rounding.
"""

Kernel = Callable[..., Any]


def nothing(*args: Any, **kwargs: Any) -> None:
    """Values that need no check, or results of an operator that only writes."""


@dataclass(frozen=True)
class Operator:
    """One fused operator of the interface."""

    name: str
    schema: str
    """Arguments and results as torch.library takes them, `(Tensor x, ...) -> Tensor`; `(a!)` marks what is written."""
    summary: str
    """One sentence, then whatever else must be known."""
    shapes: Mapping[str, str]
    """For each argument its shape and meaning."""
    results: str
    check: Kernel
    """Cheap checks: shapes, dtypes, devices. Raises DlinferArgumentError; reads no values, so never waits for a device."""
    fake: Kernel
    """Results with the right shapes and dtypes and without values, for graphs."""
    tolerance: Tolerance
    values: Kernel = field(default=nothing)
    """Checks of values (lengths, block tables, indices). Reads them: waits for a device that they live on."""
    indices: tuple[str, ...] = ()
    """The arguments that `values` reads."""

    @cached_property
    def parsed(self) -> torch.FunctionSchema:
        """The schema as torch reads it."""
        # Private: torch offers no public parser of schemas.
        return torch._C.parse_schema(f"{NAMESPACE}::{self.name}{self.schema}")

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.parsed.arguments)

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """The arguments that a kernel writes to."""
        return tuple(
            argument.name
            for argument in self.parsed.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        )

    @property
    def family(self) -> str:
        """Which file declares it."""
        return self.check.__module__.rpartition(".")[2]

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a call by name, with defaults for those that are missing."""
        found = dict(zip(self.arguments, args, strict=False)) | dict(kwargs)
        return {a.name: found.get(a.name, a.default_value) for a in self.parsed.arguments}
