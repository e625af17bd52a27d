"""The declaration of one operator, from which everything else follows.

A declaration has the schema that torch is told, functions that check arguments and give the shapes of results without
computing them, and the words of the documentation. The arguments, their order and their defaults are said once, in the
schema: each of the functions names only those that it needs. The kernels of a vendor take all of them, positionally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from inspect import signature
from operator import itemgetter
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


def nothing() -> None:
    """Values that need no check, or results of an operator that only writes."""


def _choosing(places: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What gives the arguments at some places; the library's getter would not make a tuple of one."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda args: tuple(args[place] for place in places)


@dataclass(frozen=True)
class Operator:
    """One fused operator of the interface.

    `check`, `fake` and `values` are given as functions of the arguments that they need, by the schema's names. As
    attributes they take what a kernel takes: all arguments of the schema.
    """

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
    over: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """For a written argument that may lie over another: the pairs that must then start and step alike, that one first."""

    def __post_init__(self) -> None:
        for part in ("check", "fake", "values"):
            # The class is frozen for everybody else.
            object.__setattr__(self, part, self._of_all(getattr(self, part)))

    def _of_all(self, function: Kernel) -> Kernel:
        """`function`, which names the arguments that it needs, as a function of all arguments."""
        needed = list(signature(function).parameters)
        strangers = sorted(set(needed) - set(self.arguments))
        if strangers:
            raise TypeError(
                f"{function.__name__} takes {', '.join(strangers)}: not in the schema of {self.name}"
            )
        chosen = _choosing([self.arguments.index(name) for name in needed])
        defaults = tuple(argument.default_value for argument in self.parsed.arguments)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if kwargs:
                args = tuple(self.bound(args, kwargs).values())
            # torch leaves defaults at the end of a call out.
            return function(*chosen(args + defaults[len(args) :]))

        return called

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
