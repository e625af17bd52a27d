"""Runs kernels of the loop IR on the CPU, as they are written: the reference for vendors' printers.

All iterations of a body are computed at once, over tensors of [rows, columns]. Every index is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor

from dicp.loops.index import Affine, Size
from dicp.loops.ir import (
    CheckedIndex,
    Compute,
    Convert,
    IndexValue,
    Instruction,
    LiteralValue,
    Load,
    Loop,
    LoopKernel,
    Phase,
    PhasePart,
    Reduce,
    RowNest,
    Scan,
    Store,
)
from dicp.loops.primitives import Value, held
from dicp.loops.reference import compute, convert, number

__all__ = ["Sizes", "evaluate_kernel", "size_value"]

Sizes = Mapping[str, int]


def size_value(size: Size, sizes: Sizes) -> int:
    """A size as a number."""
    if isinstance(size, int):
        return size
    return int(size.subs({s: sizes[s.name] for s in size.free_symbols}))


def evaluate_kernel(kernel: LoopKernel, buffers: Sequence[Tensor], sizes: Sequence[int] = ()) -> None:
    """`buffers`: one-dimensional, for the parameters; those that are written are changed."""
    memory = {p.name: b for p, b in zip(kernel.parameters, buffers, strict=True)}
    for nest in kernel.nests:
        _NestEvaluator(nest, memory, dict(zip(kernel.sizes, sizes, strict=True))).run()


class _NestEvaluator:
    def __init__(self, nest: RowNest, memory: Mapping[str, Tensor], sizes: Sizes) -> None:
        self.nest, self.sizes = nest, sizes
        self.rows = self._grid(nest.rows)
        self.count = len(next(iter(self.rows.values()))) if nest.rows else 1
        self.memory = dict(memory)
        scratch = {r.name: (r.dtype, size_value(r.size, sizes)) for r in nest.scratch}
        self.scratch = {
            name: torch.zeros(self.count, size, dtype=held(d)) for name, (d, size) in scratch.items()
        }
        self.row_values: dict[str, Tensor] = {}

    def _grid(self, loops: Sequence[Loop]) -> dict[str, Tensor]:
        """The values of the variables in each iteration."""
        ranges = [
            torch.arange(
                size_value(p.begin, self.sizes),
                max(size_value(p.begin, self.sizes), size_value(p.end, self.sizes)),
            )
            for p in loops
        ]
        if not ranges:
            return {}
        grids = torch.meshgrid(*ranges, indexing="ij")
        return {loop.variable: grid.reshape(-1) for loop, grid in zip(loops, grids, strict=True)}

    def run(self) -> None:
        for phase in self.nest.phases:
            self._phase(phase)

    def _phase(self, phase: Phase) -> None:
        gathered: dict[tuple[Value, ...], list[list[Tensor]]] = {}
        for part in phase.parts:
            values, extent = self._part(part)
            for i in part.body:
                if isinstance(i, Reduce):
                    operands = [values[o.name].expand(self.count, extent) for o in i.operands]
                    gathered.setdefault(i.results, []).append(operands)
        for reduction in phase.reductions:
            parts = gathered[reduction.results]
            joined = [torch.cat(tensors, 1) for tensors in zip(*parts, strict=True)]
            for result, value in zip(reduction.results, reduced(reduction.kind, joined), strict=True):
                self.row_values[result.name] = value

    def _part(self, part: PhasePart) -> tuple[dict[str, Tensor], int]:
        columns = self._grid(part.columns)
        extent = len(next(iter(columns.values()))) if part.columns else 1
        variables = {n: v.reshape(-1, 1) for n, v in self.rows.items()} | {
            n: v.reshape(1, -1) for n, v in columns.items()
        }
        values = dict(self.row_values)
        body = _BodyEvaluator(self, variables, values, (self.count, extent))
        for instruction in part.body:
            body.run(instruction)
        if not part.columns:
            self.row_values = values
        return values, extent


class _BodyEvaluator:
    def __init__(
        self,
        nest: _NestEvaluator,
        variables: Mapping[str, Tensor],
        values: dict[str, Tensor],
        shape: tuple[int, int],
    ) -> None:
        self.nest, self.variables, self.values, self.shape = nest, variables, values, shape

    def run(self, i: Instruction) -> None:
        match i:
            case Load():
                self.values[i.result.name] = self._load(i)
            case Store():
                self._store(i)
            case Compute(result, primitive, operands):
                given = [self.values[o.name] if isinstance(o, Value) else o for o in operands]
                self.values[result.name] = compute(primitive, *given, dtype=result.dtype)
            case Convert(result, operand, dtype):
                self.values[result.name] = convert(self.values[operand.name], dtype)
            case LiteralValue(result, value):
                known = (
                    value.subs({s: self.nest.sizes[s.name] for s in value.free_symbols})
                    if isinstance(value, sympy.Basic)
                    else value
                )
                self.values[result.name] = number(_python(known), result.dtype)
            case IndexValue(result, index):
                self.values[result.name] = self.index(index)
            case CheckedIndex():
                self.values[i.result.name] = self._checked(i)
            case Scan(results, kind, operands):
                tensors = [self.values[o.name].expand(self.shape) for o in operands]
                self.values |= {r.name: v for r, v in zip(results, scanned(kind, tensors), strict=True)}

    def index(self, index: Affine) -> Tensor:
        result = torch.tensor(size_value(index.constant, self.nest.sizes))
        for variable, factor in index.terms:
            if isinstance(variable, str):
                term = self.variables[variable] if variable in self.variables else self.values[variable]
            else:
                operand, divisor = self.index(variable.operand), size_value(variable.divisor, self.nest.sizes)
                if operand.numel() and operand.min() < 0:
                    raise IndexError(f"{variable} divides a negative index")
                floor = type(variable).__name__ == "FloorQuotient"
                term = operand // max(divisor, 1) if floor else operand % max(divisor, 1)
            result = result + term * size_value(factor, self.nest.sizes)
        return result

    def _addresses(self, i: Load | Store, memory: Tensor) -> tuple[Tensor, Tensor | None]:
        index = self.index(i.index).expand(self.shape)
        when = None if i.when is None else self.values[i.when.name].expand(self.shape)
        touched = index if when is None else index[when]
        if touched.numel() and (touched.min() < 0 or touched.max() >= memory.shape[-1]):
            raise IndexError(
                f"{i} is outside of {memory.shape[-1]} elements: {int(touched.min())}..{int(touched.max())}"
            )
        return index, when

    def _load(self, i: Load) -> Tensor:
        scratch = self.nest.scratch.get(i.buffer)
        memory = self.nest.memory[i.buffer] if scratch is None else scratch
        index, when = self._addresses(i, memory)
        safe = index if when is None else torch.where(when, index, 0)
        if not memory.shape[-1]:
            return number(i.otherwise, i.result.dtype).expand(self.shape)
        found = memory[safe] if scratch is None else torch.gather(memory, 1, safe)
        found = found.to(i.result.dtype)
        return found if when is None else torch.where(when, found, number(i.otherwise, i.result.dtype))

    def _store(self, i: Store) -> None:
        scratch = self.nest.scratch.get(i.buffer)
        memory = self.nest.memory[i.buffer] if scratch is None else scratch
        index, when = self._addresses(i, memory)
        value = self.values[i.operand.name].expand(self.shape).to(memory.dtype)
        if scratch is not None:
            memory.scatter_(1, index, value)
            return
        if when is not None:
            index, value = index[when], value[when]
        memory[index.reshape(-1)] = value.reshape(-1)

    def _checked(self, i: CheckedIndex) -> Tensor:
        value, size = self.values[i.operand.name], size_value(i.size, self.nest.sizes)
        inside = (value >= (-size if i.wraps else 0)) & (value < size)
        if not bool(inside.all()):
            raise IndexError(
                f"index {int(value[~inside][0])} is out of bounds for a dimension with size {size}"
            )
        return torch.where(value < 0, value + size, value)


def _python(value: Any) -> Any:
    if isinstance(value, sympy.Basic):
        return bool(value) if value.is_Boolean else int(value) if value.is_Integer else float(value)
    return value


def reduced(kind: str, operands: Sequence[Tensor]) -> list[Tensor]:
    """Over the second dimension."""
    x = operands[0]
    match kind:
        case "sum" | "prod":
            wide = x.double() if x.is_floating_point() else x
            return [getattr(torch, kind)(wide, 1, keepdim=True).to(x.dtype)]
        case "max" | "min":
            if not x.shape[1]:
                return [_neutral(kind, x.dtype).expand(len(x), 1)]
            return [getattr(torch, f"a{kind}")(x, 1, keepdim=True)]
        case "any" | "all":
            return [getattr(torch, kind)(x, 1, keepdim=True)]
        case "argmax" | "argmin":
            return _extreme(kind, x, operands[1])
        case "welford":
            mean = x.double().mean(1, keepdim=True)
            return [mean.to(x.dtype), ((x.double() - mean) ** 2).sum(1, keepdim=True).to(x.dtype)]
        case _:
            highest = reduced("max", [x])[0]
            shift = torch.where(highest.isinf(), 0, highest)
            return [highest, torch.exp(x.double() - shift).sum(1, keepdim=True).to(x.dtype)]


def _neutral(kind: str, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return torch.tensor(float("-inf") if kind == "max" else float("inf"), dtype=dtype)
    if dtype is torch.bool:
        return torch.tensor(kind == "min")
    limits = torch.iinfo(dtype)
    return torch.tensor(limits.min if kind == "max" else limits.max, dtype=dtype)


def _extreme(kind: str, x: Tensor, positions: Tensor) -> list[Tensor]:
    order = torch.argsort(positions, 1)
    x, positions = torch.gather(x, 1, order), torch.gather(positions, 1, order)
    if not x.shape[1]:
        return [_neutral(kind[3:], x.dtype).expand(len(x), 1), torch.zeros(len(x), 1, dtype=torch.int64)]
    extreme = getattr(torch, f"a{kind[3:]}")(x, 1, keepdim=True)
    found = (x == extreme) | (
        torch.isnan(x) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)
    )
    first = found.to(torch.uint8).argmax(1, keepdim=True)
    return [torch.gather(x, 1, first), torch.gather(positions, 1, first)]


def scanned(kind: str, operands: Sequence[Tensor]) -> list[Tensor]:
    """Along the second dimension."""
    x = operands[0]
    match kind:
        case "sum" | "prod":
            wide = x.double() if x.is_floating_point() else x
            return [getattr(torch, f"cum{kind}")(wide, 1).to(x.dtype)]
        case "max" | "min":
            values, at = getattr(torch, f"cum{kind}")(x, 1)
            return [values, torch.gather(operands[1], 1, at)]
        case _:
            return [torch.logcumsumexp(x, 1)]
