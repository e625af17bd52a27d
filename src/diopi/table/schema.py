"""What the table consists of."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field, replace
from typing import Any

DTYPE_GROUPS: dict[str, tuple[str, ...]] = {
    "fp": ("float16", "bfloat16", "float32", "float64"),
    "int": ("int8", "uint8", "int16", "int32", "int64"),
    "bool": ("bool",),
    "complex": ("complex64", "complex128"),
}
CATEGORIES = (
    "elementwise",
    "comparison",
    "reduction",
    "matrix",
    "movement",
    "selection",
    "random",
    "optimizer",
    "attention",
    "runtime",
)
# exact: bit for bit. ulp: correctly rounded up to a few units. accumulate: judged by the noise of its own sums.
# distribution: random numbers, judged by their distribution.
# index: positions of picked values, which may differ where the values tie. none: there is no value to judge.
TOLERANCES = ("exact", "ulp", "accumulate", "distribution", "index", "none")

# What a tensor argument is to its function.
#   in, ins         read (one tensor, a list of tensors); must be the same afterwards
#   out, outs       written, allocated by the caller (one, a list)
#   update, updates read and written
#   made            a tensor the function makes itself by diopiRequireTensor, because its size depends on the data
#   value           a number the function writes: bool*, double*, int64_t*
ROLES = ("in", "ins", "out", "outs", "update", "updates", "made", "value")


class TableError(ValueError):
    """An entry of the table is wrong; says where and why."""


@dataclass(frozen=True)
class Argument:
    """One argument of a C function."""

    ctype: str
    name: str

    @property
    def python_name(self) -> str:
        """The name in an expression: a keyword of Python gets an underscore."""
        return f"{self.name}_" if keyword.iskeyword(self.name) else self.name

    @property
    def declaration(self) -> str:
        return f"{self.ctype} {self.name}".strip()


@dataclass(frozen=True)
class Function:
    """One function of the published C interface."""

    header: str
    name: str
    returns: str
    weak: bool
    deprecated: bool
    arguments: tuple[Argument, ...]

    @property
    def in_place(self) -> bool:
        """Named as the interface names its in-place forms: the written tensor is an input too."""
        return "Inp" in self.name[5:].removeprefix("Input")

    def default_role(self, argument: Argument) -> str | None:
        """What an argument is, as far as its type, its neighbours and the function's name tell; None for an attribute."""
        position = self.arguments.index(argument)
        counted = (
            self.arguments[position + 1].ctype in ("int64_t", "const int64_t")
            if argument != self.arguments[-1]
            else False
        )
        match argument.ctype.removeprefix("const "):
            case "diopiConstTensorHandle_t":
                return "in"
            case "diopiConstTensorHandle_t*":
                return "ins"
            case "diopiTensorHandle_t":
                return "update" if self.in_place and argument is self._first("diopiTensorHandle_t") else "out"
            case "diopiTensorHandle_t*" if self.in_place:
                return "updates"
            case "diopiTensorHandle_t*":
                return "outs" if counted or "inputs" in (a.name for a in self.arguments) else "made"
            case "bool*" | "double*" | "int64_t*" if not argument.ctype.startswith("const "):
                return "value"
        return None

    def _first(self, ctype: str) -> Argument | None:
        return next((a for a in self.arguments if a.ctype == ctype), None)

    @property
    def declaration(self) -> str:
        return f"{self.returns} {self.name}({', '.join(a.declaration for a in self.arguments) or 'void'})"


@dataclass(frozen=True)
class Map:
    """Further overloads that a function serves, and what is different for them."""

    aten: tuple[str, ...]
    args: dict[str, str] = field(default_factory=dict)
    """Added to the entry's."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Keys of the entry that have another value here: when, dtypes, outputs, resize."""


@dataclass(frozen=True)
class Entry:
    """What one C function means to PyTorch."""

    function: Function
    source: str
    category: str
    dtypes: tuple[str, ...]
    tolerance: str
    aten: tuple[str, ...] = ()
    same: bool = False
    scalar: str | None = None
    commutes: bool = False
    when: str | None = None
    otherwise: str | None = None
    outputs: tuple[str, ...] = ()
    resize: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    roles: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    maps: tuple[Map, ...] = ()
    """For overloads whose arguments are named or meant otherwise than those of `aten`."""
    reference: str | None = None
    """Python over the C argument names: the new values of what the function writes, in the order of its arguments."""
    note: str = ""

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def overloads(self) -> tuple[str, ...]:
        """All ATen overloads that it serves."""
        return (*self.aten, *(overload for further in self.maps for overload in further.aten))

    def serving(self, overload: str) -> Entry:
        """The entry as it is for one of its overloads."""
        for further in self.maps:
            if overload in further.aten:
                return replace(self, args={**self.args, **further.args}, **further.changes)
        return self

    def role(self, argument: Argument) -> str | None:
        """What a tensor argument is to the function (ROLES); None for an attribute."""
        return self.roles.get(argument.name) or self.function.default_role(argument)

    def written(self) -> list[Argument]:
        """What the function writes, in the order of its arguments: one value of `reference` for each."""
        return [a for a in self.function.arguments if self.role(a) not in (None, "in", "ins")]


@dataclass(frozen=True)
class OperatorTable:
    """The whole: every published function, and the entries of those that are served."""

    functions: dict[str, Function]
    entries: dict[str, Entry]

    def by_header(self, header: str) -> list[Function]:
        return [f for f in self.functions.values() if f.header == header]

    def by_overload(self) -> dict[str, list[Entry]]:
        """ATen overload -> entries that serve it, the special (scalar) forms first."""
        served: dict[str, list[Entry]] = {}
        for entry in self.entries.values():
            for overload in entry.overloads:
                served.setdefault(overload, []).append(entry.serving(overload))
        for entries in served.values():
            entries.sort(key=lambda e: e.scalar is None)
        return served
