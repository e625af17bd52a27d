"""Index arithmetic: sums of loop variables with factors. A size is a number, or an expression of sympy where it is symbolic.

Sizes are integers that are never negative. Rules that simplify an index may assume that every loop it stands in runs at least
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import sympy
from torch.fx.experimental.symbolic_shapes import statically_known_true

__all__ = [
    "Affine",
    "FloorQuotient",
    "FloorRemainder",
    "IndexVariable",
    "Size",
    "free_symbols",
    "is_nonnegative",
    "product",
    "quotient",
    "refined",
    "size_of",
]

Size: TypeAlias = int | sympy.Expr


def size_of(value: Any) -> Size:
    """The size that torch gives as an int, a SymInt or an expression."""
    if isinstance(value, int):
        return int(value)
    node = getattr(value, "node", None)
    if node is None:
        return simplified(value)
    if node.hint == 1 and statically_known_true(
        value == 1
    ):  # an expression that a broadcast has shown to be 1
        return 1
    return simplified(node.expr)


def simplified(expression: Size) -> Size:
    """An int where an expression is one."""
    if isinstance(expression, int):
        return expression
    return int(expression) if expression.is_Integer else expression


def product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = result * size
    return result if isinstance(result, int) else _expanded(result)


@lru_cache(4096)
def _expanded(expression: sympy.Expr) -> Size:
    return simplified(sympy.expand(expression))


def added(a: Size, b: Size) -> Size:
    """The sum; expanded, so that equal sizes are equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _expanded(sympy.sympify(a) + b)


def quotient(a: Size, b: Size) -> Size | None:
    """`a / b` where `b` surely divides `a`."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if a == b:
        return 1
    return _symbolic_quotient(sympy.sympify(a), sympy.sympify(b))


@lru_cache(4096)
def _symbolic_quotient(a: sympy.Expr, b: sympy.Expr) -> Size | None:
    if b == 0:
        return None
    result = sympy.cancel(a / b)
    if result.as_numer_denom()[1] != 1:
        return None
    return _expanded(result)


def refined(first: Sequence[Size], second: Sequence[Size]) -> tuple[Size, ...] | None:
    """The longest loops that both lists are made of by joining neighbours, or None where there are none such."""
    result: list[Size] = []
    left, right = [s for s in first if s != 1], [s for s in second if s != 1]
    while left and right:
        a, b = left.pop(), right.pop()
        if a == b:
            result.append(a)
        elif (rest := quotient(a, b)) is not None:
            result.append(b)
            left.append(rest)
        elif (rest := quotient(b, a)) is not None:
            result.append(a)
            right.append(rest)
        else:
            return None
    return None if left or right else tuple(reversed(result))


def is_nonnegative(value: Size) -> bool:
    """Whether a number is certain to be at least 0 where all symbols are at least 1."""
    return value >= 0 if isinstance(value, int) else _symbolic_nonnegative(value)


@lru_cache(4096)
def _symbolic_nonnegative(value: sympy.Expr) -> bool:
    above_one = {
        s: 1 + sympy.Symbol(f"{s.name}_", integer=True, nonnegative=True) for s in value.free_symbols
    }
    shifted = sympy.expand(value.xreplace(above_one))
    return all(
        term.as_coeff_Mul()[0] >= 0 and term.is_nonnegative is not False
        for term in sympy.Add.make_args(shifted)
    )


def free_symbols(sizes: Iterable[Size]) -> Iterator[str]:
    """The names of the symbols in sizes, each once, sorted."""
    found = {s.name for size in sizes if not isinstance(size, int) for s in size.free_symbols}
    return iter(sorted(found))


@dataclass(frozen=True, slots=True)
class FloorQuotient:
    """`operand // divisor`, of an operand that is never negative: the quotient that C and Python agree on."""

    operand: Affine
    divisor: Size

    def __str__(self) -> str:
        return f"(({self.operand}) // {self.divisor})"


@dataclass(frozen=True, slots=True)
class FloorRemainder:
    """`operand % divisor`, of an operand that is never negative."""

    operand: Affine
    divisor: Size

    def __str__(self) -> str:
        return f"(({self.operand}) % {self.divisor})"


IndexVariable: TypeAlias = str | FloorQuotient | FloorRemainder
"""The variable of a loop, the name of an int64 Value of the body, or a part of an index."""


@dataclass(frozen=True, slots=True)
class Affine:
    """`constant + sum(factor * variable)`; terms are sorted, none has the factor 0, so equal sums are equal."""

    constant: Size = 0
    terms: tuple[tuple[IndexVariable, Size], ...] = ()

    @staticmethod
    def of(variable: IndexVariable) -> Affine:
        return Affine(0, ((variable, 1),))

    def __add__(self, other: Affine | Size) -> Affine:
        if not isinstance(other, Affine):
            return Affine(added(self.constant, other), self.terms)
        constant = added(self.constant, other.constant)
        if not other.terms:
            return Affine(constant, self.terms)
        if not self.terms:
            return Affine(constant, other.terms)
        factors = dict(self.terms)
        for variable, factor in other.terms:
            factors[variable] = added(factors[variable], factor) if variable in factors else factor
        kept = [(v, f) for v, f in factors.items() if f != 0]
        kept.sort(key=_order)
        return Affine(constant, tuple(kept))

    def __mul__(self, factor: Size) -> Affine:
        if isinstance(factor, int):
            if factor == 0:
                return ZERO
            if factor == 1:
                return self
        return Affine(
            product((self.constant, factor)), tuple((v, product((f, factor))) for v, f in self.terms)
        )

    def variables(self) -> Iterator[str]:
        """Names of loops and values that it depends on, also inside quotients; some perhaps twice."""
        for variable, _ in self.terms:
            if isinstance(variable, str):
                yield variable
            else:
                yield from variable.operand.variables()

    def factor(self, variable: IndexVariable) -> Size:
        """0 where the variable does not occur outside of quotients."""
        for name, factor in self.terms:
            if name == variable:
                return factor
        return 0

    def substitute(self, values: Mapping[str, Affine]) -> Affine:
        """Variables replaced, also inside quotients."""
        result = Affine(self.constant)
        for variable, factor in self.terms:
            if isinstance(variable, str):
                part = values.get(variable)
                result = result + (Affine.of(variable) if part is None else part) * factor
            else:
                operand = variable.operand.substitute(values)
                result = result + Affine.of(type(variable)(operand, variable.divisor)) * factor
        return result

    def sizes(self) -> Iterator[Size]:
        """The numbers in it."""
        yield self.constant
        for variable, factor in self.terms:
            yield factor
            if not isinstance(variable, str):
                yield variable.divisor
                yield from variable.operand.sizes()

    def __str__(self) -> str:
        parts = [
            str(v) if f == 1 else f"{v} * {f}" if isinstance(f, int) else f"{v} * ({f})"
            for v, f in self.terms
        ]
        if self.constant != 0 or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)


def _order(term: tuple[IndexVariable, Size]) -> str:
    variable = term[0]
    return variable if isinstance(variable, str) else str(variable)


ZERO = Affine()


class IndexRanges:
    """What values loop variables take: lets divisions of indices be carried out."""

    def __init__(self) -> None:
        self.highest: dict[IndexVariable, Size] = {}
        """The largest value of a variable; the smallest is at least 0."""
        self.lowest: dict[IndexVariable, Size] = {}
        """The smallest value where it is not 0."""

    def variable(self, name: str, size: Size) -> Affine:
        """The variable of a loop from 0 to size."""
        if size == 1:
            return ZERO
        return self.range(name, 0, size)

    def range(self, name: str, begin: Size, end: Size) -> Affine:
        """The variable of a loop."""
        self.highest[name] = added(end, -1)
        if begin != 0:
            self.lowest[name] = begin
        return Affine.of(name)

    def bounds(self, index: Affine) -> tuple[Size, Size] | None:
        """The smallest and the largest value, or None where they are not known."""
        lowest = highest = index.constant
        for variable, factor in index.terms:
            most = self.highest.get(variable)
            if most is None:
                return None
            least = self.lowest.get(variable, 0)
            if is_nonnegative(factor):
                highest = added(highest, product((most, factor)))
                lowest = added(lowest, product((least, factor)))
            elif is_nonnegative(product((-1, factor))):
                lowest = added(lowest, product((most, factor)))
                highest = added(highest, product((least, factor)))
            else:
                return None
        return lowest, highest

    def divmod(self, index: Affine, divisor: Size) -> tuple[Affine, Affine]:
        """`index // divisor` and `index % divisor`, without a division where that can be seen."""
        if divisor == 1:
            return index, ZERO
        if divisor == 0:  # of no elements; what depends on a loop that does not run must still do so
            return ZERO, index
        whole: list[tuple[IndexVariable, Size]] = []
        rest: list[tuple[IndexVariable, Size]] = []
        for variable, factor in index.terms:
            share = quotient(factor, divisor)
            if share is None:
                rest.append((variable, factor))
            else:
                whole.append((variable, share))
        high, low = self._divided_constant(index.constant, divisor)
        remainder = Affine(low, tuple(rest))
        if not rest and low == 0:
            return Affine(high, tuple(whole)), ZERO
        bounds = self.bounds(remainder)
        known = bounds is not None and is_nonnegative(bounds[0])
        if (
            bounds is not None
            and known
            and is_nonnegative(added(divisor, added(-1, product((-1, bounds[1])))))
        ):
            return Affine(high, tuple(whole)), remainder
        if not known:  # perhaps below 0 without the rest
            whole, high, remainder = [], 0, index
            bounds = self.bounds(index)
        division, modulo = FloorQuotient(remainder, divisor), FloorRemainder(remainder, divisor)
        self.highest[modulo] = added(divisor, -1)
        if bounds is not None and isinstance(bounds[1], int) and isinstance(divisor, int):
            self.highest[division] = bounds[1] // divisor
        return Affine(high, tuple(whole)) + Affine.of(division), Affine.of(modulo)

    def _divided_constant(self, constant: Size, divisor: Size) -> tuple[Size, Size]:
        if isinstance(constant, int) and isinstance(divisor, int):
            return divmod(constant, divisor)
        share = quotient(constant, divisor)
        return (share, 0) if share is not None else (0, constant)

    def linear(self, index: Sequence[Affine], sizes: Sequence[Size]) -> Affine:
        """The number of an element in row-major order."""
        result, factor = ZERO, 1
        for part, size in zip(reversed(index), reversed(sizes), strict=True):
            result = result + part * factor
            factor = product((factor, size))
        return result

    def split(self, linear: Affine, sizes: Sequence[Size]) -> tuple[Affine, ...]:
        """The index of the element of that number."""
        result: list[Affine] = []
        for size in reversed(sizes[1:]):
            linear, rest = self.divmod(linear, size)
            result.append(rest)
        if sizes:
            result.append(linear if sizes[0] != 1 else ZERO)
        return tuple(reversed(result))
