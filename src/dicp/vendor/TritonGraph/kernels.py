"""A kernel of the loop IR as functions of Triton, and what must be known to launch it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sympy
import torch

from dicp.loops.index import Size
from dicp.loops.ir import CheckedIndex, LoopKernel
from dicp.vendor.TritonGraph.expressions import KernelNumbers
from dicp.vendor.TritonGraph.sections import KernelSection, PartSection, RowSection
from dicp.vendor.TritonGraph.tiles import row_tile, stays_whole

__all__ = ["Launch", "TritonKernel", "printed_kernel"]


@dataclass(frozen=True)
class Launch:
    """One function that is launched."""

    name: str
    programs: Size
    warps: int


@dataclass(frozen=True)
class TritonKernel:
    """All launches take the same arguments: pointers, then numbers."""

    source: str
    launches: tuple[Launch, ...]
    pointers: tuple[tuple[str, torch.dtype], ...]
    """Parameters of the kernel, then `errors` where it checks indices, workspaces, scratch."""
    memory: Mapping[str, tuple[torch.dtype, Size]]
    """Workspaces and scratch: how many elements of what."""
    numbers: Mapping[str, tuple[sympy.Expr, bool]]
    """What each is computed from, and whether its bits are those of a float64."""
    checks: tuple[CheckedIndex, ...]


def printed_kernel(kernel: LoopKernel, name: str, index_type: str, multiprocessors: int) -> TritonKernel:
    return _KernelWriter(kernel, name, index_type, multiprocessors).write()


class _KernelWriter:
    def __init__(self, kernel: LoopKernel, name: str, index_type: str, multiprocessors: int) -> None:
        self.kernel, self.name, self.index_type = kernel, name, index_type
        self.multiprocessors = multiprocessors
        self.numbers = KernelNumbers()
        self.memory: dict[str, tuple[torch.dtype, Size]] = {}
        self.checks: list[CheckedIndex] = []
        self.first: list[KernelSection] = []
        self.second: list[KernelSection] = []

    def write(self) -> TritonKernel:
        dtypes = {p.name: p.dtype for p in self.kernel.parameters}
        for nest in self.kernel.nests:
            if not stays_whole(nest):
                for part in nest.phases[0].parts:
                    printed = PartSection(nest.rows, part, dtypes, self.numbers, self.index_type)
                    self.first.append(printed.section(self.checks))
                continue
            tile = row_tile(nest, list(dtypes.values()), self.multiprocessors)
            number = len(self.first)
            rows = RowSection(nest, number, tile, dtypes, self.numbers, self.index_type, self.memory)
            if tile.splits > 1:
                accumulating, joining = rows.split_sections(self.checks)
                self.first.append(accumulating)
                self.second.append(joining)
            else:
                self.first.append(rows.section(self.checks))
        pointers = [(p.name, p.dtype) for p in self.kernel.parameters]
        if self.checks:
            pointers.append(("errors", torch.int64))
        pointers += [(key, dtype) for key, (dtype, _) in self.memory.items()]
        launches: list[Launch] = []
        lines: list[str] = []
        stages = [(suffix, s) for suffix, s in (("", self.first), ("_joined", self.second)) if s]
        ends = [self._ends(sections) for _, sections in stages]  # first: they are numbers of all launches
        for (suffix, sections), borders in zip(stages, ends, strict=True):
            launch = Launch(f"{self.name}{suffix}", _sum(sections), max(s.warps for s in sections))
            lines += self._functions(launch.name, sections, borders, [key for key, _ in pointers])
            launches.append(launch)
        numbers = {
            text: (expression, text in self.numbers.bits) for expression, text in self.numbers.names.items()
        }
        return TritonKernel(
            "\n".join(lines) + "\n",
            tuple(launches),
            tuple(pointers),
            self.memory,
            numbers,
            tuple(self.checks),
        )

    def _ends(self, sections: list[KernelSection]) -> list[str]:
        """How many programs run each section and those before it."""
        return [self.numbers.text(_sum(sections[: n + 1])) for n in range(len(sections) - 1)]

    def _functions(
        self, name: str, sections: list[KernelSection], ends: list[str], pointers: list[str]
    ) -> Iterator[str]:
        numbers = list(self.numbers.names.values())
        arguments = ", ".join([*pointers, *numbers])
        for number, section in enumerate(sections):
            yield "@triton.jit"
            yield f"def {name}_{number}(pid, {arguments}):"
            yield from (f"    {line}" for line in section.lines)
            yield ""
        typed = [*pointers, *(f'{number}: "i64"' for number in numbers)]
        # Nothing is assumed of numbers, such as what divides them: they are others in another call.
        yield f"@triton.jit(do_not_specialize={numbers})" if numbers else "@triton.jit"
        yield f"def {name}({', '.join(typed)}):"
        yield "    pid = tl.program_id(0)"
        indent = "    "
        for number in range(len(sections)):
            begin = ends[number - 1] if number else ""
            if number < len(sections) - 1:
                yield f"{indent}if pid < {ends[number]}:"
                yield f"{indent}    {name}_{number}(pid{f' - {begin}' if begin else ''}, {arguments})"
                yield f"{indent}else:"
                indent += "    "
            else:
                yield f"{indent}{name}_{number}(pid{f' - {begin}' if begin else ''}, {arguments})"
        yield ""


def _sum(sections: list[KernelSection]) -> Size:
    total: Size = 0
    for section in sections:
        total = total + section.programs
    return total
