"""What the table consists of."""

from __future__ import annotations

from dataclasses import dataclass, field

DTYPE_GROUPS: dict[str, tuple[str, ...]] = {
    "fp": ("float16", "bfloat16", "float32", "float64"),
    "int": ("int8", "uint8", "int16", "int32", "int64"),
    "bool": ("bool",),
    "complex": ("complex64", "complex128"),
}
CATEGORIES = ("elementwise", "comparison", "reduction", "matrix", "movement", "random")
# exact: bit for bit. ulp: correctly rounded up to a few units. accumulate: judged by the noise of its own sums.
# distribution: random numbers, judged by their distribution.
TOLERANCES = ("exact", "ulp", "accumulate", "distribution")


class TableError(ValueError):
    """An entry of the table is wrong; says where and why."""


@dataclass(frozen=True)
class Argument:
    """One argument of a C function."""

    ctype: str
    name: str

    @property
    def is_output(self) -> bool:
        """A tensor the function writes (also the in-place ones)."""
        return self.ctype == "diopiTensorHandle_t"

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

    @property
    def declaration(self) -> str:
        return f"{self.returns} {self.name}({', '.join(a.declaration for a in self.arguments) or 'void'})"


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
    indices: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    args: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.function.name


@dataclass(frozen=True)
class Table:
    """The whole: every published function, and the entries of those that are served."""

    functions: dict[str, Function]
    entries: dict[str, Entry]

    def by_header(self, header: str) -> list[Function]:
        return [f for f in self.functions.values() if f.header == header]

    def by_overload(self) -> dict[str, list[Entry]]:
        """ATen overload -> entries that serve it, the special (scalar) forms first."""
        served: dict[str, list[Entry]] = {}
        for entry in self.entries.values():
            for overload in entry.aten:
                served.setdefault(overload, []).append(entry)
        for entries in served.values():
            entries.sort(key=lambda e: e.scalar is None)
        return served
