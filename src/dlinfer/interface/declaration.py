"""The declaration of one operator, from which everything else follows.

A declaration has the schema that torch is told, functions that check arguments and give the shapes of results without
computing them, and the words of the documentation. The arguments, their order and their defaults are written once, in the
schema: every function in Python (checks, fakes, the reference, a vendor's kernels behind `@kernel`) names only those that it
needs. Arguments that travel together may be one parameter, annotated with a NamedTuple whose fields are named as in the
schema; such parameters come last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from inspect import signature
from operator import itemgetter
from typing import Any, Literal, NamedTuple, get_type_hints

import torch
from torch import Tensor

from dlinfer.errors import DlinferArgumentError

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


def _getter(indices: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What gives the elements at some indices; the library's getter would not make a tuple of one."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda values: tuple(values[index] for index in indices)


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
    """For each argument its shape and meaning. What is not in the schema is left out: a family may describe its own once."""
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
        # The class is frozen for everybody else.
        object.__setattr__(self, "shapes", {n: self.shapes[n] for n in self.arguments if n in self.shapes})
        for part in ("check", "fake", "values"):
            object.__setattr__(self, part, self.bind(getattr(self, part)))

    def bind(self, function: Kernel) -> Kernel:
        """`function`, which names the arguments that it needs, as a function of all arguments of the schema."""
        plain, groups = self._needed_by(function)
        defaults = tuple(argument.default_value for argument in self.parsed.arguments)
        chosen = _getter([self.arguments.index(name) for name in plain])
        made = [self._maker(group) for group in groups]

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if kwargs:
                args = tuple(self.bound(args, kwargs).values())
            # torch leaves defaults at the end of a call out.
            args = args + defaults[len(args) :]
            try:
                if made:
                    return function(*chosen(args), *[make(args) for make in made])
                return function(*chosen(args))
            except DlinferArgumentError as error:
                error.operator = error.operator or self.name
                raise

        return called

    def _needed_by(self, function: Kernel) -> tuple[list[str], list[Any]]:
        """The arguments that a function names one by one, and the groups behind them."""
        names = list(signature(function).parameters)
        plain = [name for name in names if name in self.arguments]
        rest = names[len(plain) :]
        hints = get_type_hints(function) if rest else {}
        groups = [hints.get(name) for name in rest]
        if names[: len(plain)] != plain or not all(hasattr(group, "_fields") for group in groups):
            strangers = ", ".join(name for name in names if name not in self.arguments)
            raise TypeError(f"{function.__name__} takes {strangers}: not in the schema of {self.name}")
        return plain, groups

    def _maker(self, group: Any) -> Callable[[tuple[Any, ...]], Any]:
        """What makes a group of all arguments; a field that the schema has not keeps the group's default."""
        absent = [name for name in group._fields if name not in self.arguments]
        constants = tuple(group._field_defaults[name] for name in absent)
        order = [*self.arguments, *absent]
        chosen = _getter([order.index(name) for name in group._fields])
        return lambda args: group(*chosen(args + constants))

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
        """The file that declares it; files of this name hold its reference, its call form and its kernels."""
        return self.check.__module__.rpartition(".")[2]

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a call by name, with defaults for those that are missing."""
        found = dict(zip(self.arguments, args, strict=False)) | dict(kwargs)
        return {a.name: found.get(a.name, a.default_value) for a in self.parsed.arguments}


# ---- arguments that travel together; the default of a field is for operators whose schema does not have it ----


class MaskParameters(NamedTuple):
    """Which keys a query attends to, beside a mask, and how scores are changed before the softmax."""

    softmax_scale: float
    causal: bool = True
    alibi_slopes: Tensor | None = None
    window_left: int = -1
    window_right: int = -1
    soft_cap: float = 0.0


class CacheQuantisation(NamedTuple):
    """How caches of 8 or 4 bits are read."""

    kv_scales: Tensor | None = None
    kv_zeros: Tensor | None = None
    quant_bits: int = 0

    @property
    def absent(self) -> bool:
        """Whether nothing of it is given."""
        return not self.quant_bits and self.kv_scales is None and self.kv_zeros is None


class FillQuantisation(NamedTuple):
    """How caches of 8 or 4 bits are written."""

    key_scale: Tensor | None
    key_zero: Tensor | None
    value_scale: Tensor | None
    value_zero: Tensor | None
    quant_bits: int

    @property
    def absent(self) -> bool:
        """Whether nothing of it is given."""
        return not self.quant_bits and all(given is None for given in self[:4])


class Routing(NamedTuple):
    """Which experts a token goes to, and which of them are here."""

    topk_weights: Tensor
    topk_ids: Tensor
    renormalize: bool
    first_expert: int
    num_experts: int
