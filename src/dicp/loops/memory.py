"""Where the temporaries of a program lie in its arena: buffers that are not needed at the same time share memory.

The arena consists of parts, one behind the other, each beginning at a multiple of `ALIGNMENT` bytes. The first holds all
buffers whose sizes are numbers, laid so that the part is as small as a greedy search makes it. Of what has symbolic sizes,
buffers share a part where one surely holds the other, whatever the sizes are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sympy

from dicp.errors import InvalidGraphError
from dicp.loops.index import Size, added, product
from dicp.loops.ir import LoopBuffer, LoopProgram

__all__ = ["ALIGNMENT", "Lifetime", "MemoryPlan", "Place", "lifetimes", "plan_memory", "verify_memory"]

ALIGNMENT = 64
"""Bytes: a line of the cache, and the widest vector."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The numbers of the first and the last step that touch a buffer."""

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Place:
    """Of a buffer: in which part of the arena, and how many bytes behind its beginning."""

    part: int
    offset: int


@dataclass(frozen=True)
class MemoryPlan:
    parts: tuple[Size, ...]
    """The bytes of each; a symbolic number that is negative means 0."""
    places: Mapping[str, Place]
    """Of the temporaries that a step touches."""

    def bytes_for(self, values: Mapping[str, int]) -> tuple[int, tuple[int, ...]]:
        """How large the arena is for the values of the symbols, and where each part begins."""
        end, begins = 0, []
        for size in self.parts:
            begins.append(end)
            end += rounded(max(_number(size, values), 0))
        return end, tuple(begins)


def _number(size: Size, values: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    return int(size.subs({s: values[s.name] for s in size.free_symbols}))


def rounded(size: int) -> int:
    """Up to where the next buffer may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def lifetimes(program: LoopProgram) -> dict[str, Lifetime]:
    """Of every buffer that a step touches; what the graph returns, or was given, lives on in any case."""
    found: dict[str, Lifetime] = {}
    for number, step in enumerate(program.steps):
        read, written = program.accesses(step)
        for name in (*read, *written):
            known = found.get(name)
            found[name] = Lifetime(number if known is None else known.first, number)
    return found


def byte_size(buffer: LoopBuffer) -> Size:
    return product((buffer.elements, buffer.dtype.itemsize))


def plan_memory(program: LoopProgram) -> MemoryPlan:
    """The same for programs that are equal."""
    alive = lifetimes(program)
    own = {name: b for name, b in program.buffers.items() if b.kind == "temporary" and name in alive}
    sizes = {name: byte_size(buffer) for name, buffer in own.items()}
    fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
    places, total = _packed(fixed, alive)
    parts = _Parts([total], places)
    for name in sorted(sizes.keys() - fixed.keys(), key=lambda n: alive[n].first):
        parts.add(name, sizes[name], alive[name])
    return MemoryPlan(tuple(parts.sizes), parts.places)


def _packed(sizes: Mapping[str, int], alive: Mapping[str, Lifetime]) -> tuple[dict[str, Place], int]:
    """The largest first, each at the lowest place that is free while it lives."""
    taken: list[tuple[int, int, Lifetime]] = []
    places: dict[str, Place] = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], alive[n].first)):
        own, need, offset = alive[name], rounded(sizes[name]), 0
        for begin, end, other in taken:  # in the order of their beginnings
            if other.overlaps(own):
                if offset + need <= begin:
                    break
                offset = max(offset, end)
        places[name] = Place(0, offset)
        if need:
            taken.append((offset, offset + need, own))
            taken.sort(key=lambda p: p[:2])
    return places, max((end for _, end, _ in taken), default=0)


class _Parts:
    """The parts for buffers of symbolic sizes, which come in the order of their first steps."""

    def __init__(self, sizes: list[Size], places: dict[str, Place]) -> None:
        self.sizes, self.places = sizes, places
        self.last: list[int] = [-1] * len(sizes)
        """The last step that needs each part."""

    def add(self, name: str, size: Size, alive: Lifetime) -> None:
        number = self._free(size, alive)
        if number is None:
            number = len(self.sizes)
            self.sizes.append(size)
            self.last.append(alive.last)
        self.last[number] = alive.last
        self.places[name] = Place(number, 0)

    def _free(self, size: Size, alive: Lifetime) -> int | None:
        """A part of that size, else a larger one, else one that grows."""
        free = [n for n in range(1, len(self.sizes)) if self.last[n] < alive.first]
        for number in free:
            if self.sizes[number] == size:
                return number
        for number in free:
            if holds(self.sizes[number], size):
                return number
        for number in free:
            if holds(size, self.sizes[number]):
                self.sizes[number] = size
                return number
        return None


def holds(size: Size, other: Size) -> bool:
    """Whether a size is at least another, whatever the symbols stand for; 0 too."""
    if size == other:
        return True
    rest = added(size, product((-1, other)))
    if isinstance(rest, int):
        return rest >= 0
    return all(_is_power(term) for term in sympy.Add.make_args(rest))


def _is_power(term: sympy.Expr) -> bool:
    """Whether a term is a product of symbols with a factor that is not negative."""
    factor, powers = term.as_coeff_Mul()
    return bool(factor >= 0) and all(
        f.is_Symbol or (f.is_Pow and f.base.is_Symbol and f.exp.is_Integer and f.exp > 0) or f == 1
        for f in sympy.Mul.make_args(powers)
    )


# --- checking ---


def verify_memory(program: LoopProgram, plan: MemoryPlan) -> None:
    """Raises InvalidGraphError where a buffer does not fit its place, or shares it with one that is needed meanwhile."""
    for text in _mistakes(program, plan):
        raise InvalidGraphError(
            f"invalid memory plan: {text}. This is an error of dicp's memory planning; please report it."
        )


def _mistakes(program: LoopProgram, plan: MemoryPlan) -> Iterator[str]:
    alive = lifetimes(program)
    ends: dict[str, Size] = {}
    for name, buffer in program.buffers.items():
        if buffer.kind != "temporary" or name not in alive:
            continue
        place = plan.places.get(name)
        if place is None or not 0 <= place.part < len(plan.parts):
            yield f"{name} has no place"
            continue
        ends[name] = added(byte_size(buffer), place.offset)
        if place.offset % ALIGNMENT:
            yield f"{name} begins at byte {place.offset}, which is no multiple of {ALIGNMENT}"
        if not holds(plan.parts[place.part], ends[name]):
            yield f"{name} ends at byte {ends[name]} of a part of {plan.parts[place.part]}"
    for name in ends:
        for other in ends:
            if name < other and alive[name].overlaps(alive[other]) and _share(name, other, plan, ends):
                yield f"{name} and {other} share memory, and both are needed in one step"


def _share(name: str, other: str, plan: MemoryPlan, ends: Mapping[str, Size]) -> bool:
    a, b = plan.places[name], plan.places[other]
    if a.part != b.part or a.offset == ends[name] or b.offset == ends[other]:
        return False
    return not (holds(b.offset, ends[name]) or holds(a.offset, ends[other]))
