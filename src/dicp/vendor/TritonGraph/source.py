"""One Python module for a program of loops: kernels in Triton, and a function that runs the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from dicp.loops.index import Size
from dicp.loops.ir import (
    BufferView,
    CallArgument,
    KernelArguments,
    KernelLaunch,
    LoopBuffer,
    LoopKernel,
    LoopProgram,
    MatrixProduct,
    OperatorCall,
)
from dicp.loops.memory import lifetimes
from dicp.vendor.TritonGraph.expressions import host_text
from dicp.vendor.TritonGraph.kernels import TritonKernel, printed_kernel

__all__ = ["GeneratedModule", "generated"]

_HEAD = '''\
"""A graph, compiled by dicp: kernels, and `run`, which launches them and calls operators of ATen between them."""

import math

import torch
import triton
import triton.language as tl

from dicp.vendor.TritonGraph import device_functions as device
from dicp.vendor.TritonGraph.device_functions import libdevice
from dicp.vendor.TritonGraph.expressions import bits_of
from dicp.vendor.TritonGraph.program import strided_view

'''
LARGEST = (1 << 31) - (1 << 20)
"""Elements that an index of 32 bits is surely enough for."""


@dataclass
class GeneratedModule:
    """The text, and what its names stand for besides its own."""

    source: str
    kernels: tuple[TritonKernel, ...]
    constants: dict[str, Any] = field(default_factory=dict)
    checks: int = 0
    """Places that note bad indices."""


def generated(
    program: LoopProgram, placeholders: int, device: torch.device, multiprocessors: int
) -> GeneratedModule:
    return _ModuleWriter(program, placeholders, device, multiprocessors).write()


class _ModuleWriter:
    def __init__(
        self, program: LoopProgram, placeholders: int, device: torch.device, multiprocessors: int
    ) -> None:
        self.program, self.placeholders, self.device = program, placeholders, device
        self.kernels = tuple(
            printed_kernel(kernel, f"k{n}", _index_type(program, n, kernel), multiprocessors)
            for n, kernel in enumerate(program.kernels)
        )
        self.alive = lifetimes(program)
        self.constants: dict[str, Any] = {}
        self.operators: dict[str, str] = {}
        self.checks: dict[int, int] = {}
        """Where the notes of a kernel begin."""
        self.lines: list[str] = []

    def write(self) -> GeneratedModule:
        total = 0
        for number, kernel in enumerate(self.kernels):
            self.checks[number] = total
            total += len(kernel.checks)
        self._begin(total)
        kept = {view.buffer for view in self.program.outputs}
        for number, step in enumerate(self.program.steps):
            _, written = self.program.accesses(step)
            for name in dict.fromkeys(written):
                buffer = self.program.buffers[name]
                if self.alive[name].first == number and buffer.kind in ("output", "temporary"):
                    self._allocate(buffer)
            match step:
                case KernelLaunch():
                    self._launches(step)
                case MatrixProduct():
                    self._product(step)
                case OperatorCall():
                    self._call(step)
            ended = [n for n, alive in self.alive.items() if alive.last == number and n not in kept]
            if ended:
                self.lines.append(f"del {', '.join(ended)}")
        if total:
            self.lines.append("errors_noted()")
        self.lines.append(f"return [{', '.join(self._view(view) for view in self.program.outputs)}]")
        return GeneratedModule(self._text(), self.kernels, self.constants, total)

    def _text(self) -> str:
        parts = [_HEAD, *(f"{name} = torch.ops.{text}\n" for text, name in self.operators.items())]
        parts += [f"\n{kernel.source}" for kernel in self.kernels]
        parts.append("\ndef run(inputs):\n")
        parts += [f"    {line}\n" for line in self.lines]
        return "".join(parts)

    def _begin(self, checks: int) -> None:
        names = [f"_{n}" for n in range(self.placeholders)]
        touched = {view.buffer for view in self.program.outputs} | set(self.alive)
        for buffer in self.program.buffers.values():
            if buffer.kind == "input" and buffer.name in touched:
                names[buffer.position] = buffer.name
        for symbol, position in self.program.symbols.items():
            names[position] = symbol
        if names:
            self.lines.append(f"{', '.join(names)}{',' if len(names) == 1 else ''} = inputs")
        self.lines.append("inputs.clear()")
        unused = [name for name in names if name.startswith("_")]
        if unused:
            self.lines.append(f"del {', '.join(unused)}")
        for buffer in self.program.buffers.values():
            if buffer.kind == "constant" and buffer.name in touched:
                self.lines.append(f"{buffer.name} = constant_{buffer.position}")
            elif buffer.kind in ("output", "temporary") and buffer.name in touched - set(self.alive):
                self._allocate(buffer)
        if checks:
            self.lines.append("raise_earlier_errors()")
        self.lines.append("stream = current_stream()")

    def _allocate(self, buffer: LoopBuffer) -> None:
        self.lines.append(
            f"{buffer.name} = empty_strided({_tuple(buffer.sizes)}, {_tuple(buffer.strides)}, dtype={buffer.dtype},"
            " device=here)"
        )

    # kernels

    def _launches(self, step: KernelLaunch) -> None:
        for call in step.calls:
            self._launch(step.kernel, call)

    def _launch(self, number: int, call: KernelArguments) -> None:
        kernel, printed = self.program.kernels[number], self.kernels[number]
        sizes = _Substituted(kernel, call)
        for name, (dtype, size) in printed.memory.items():
            self.lines.append(f"{name} = empty(max({sizes.text(size)}, 0), dtype={dtype}, device=here)")
        pointers = [*call.buffers]
        if printed.checks:
            begin = 2 * self.checks[number]
            pointers.append(f"errors[{begin}:{begin + 2 * len(printed.checks)}]")
        pointers += printed.memory
        numbers = [
            f"bits_of({sizes.text(expression)})" if is_bits else sizes.text(expression)
            for expression, is_bits in printed.numbers.values()
        ]
        for launch in printed.launches:
            arguments = ", ".join(["stream", sizes.text(launch.programs), *pointers, *numbers])
            self.lines.append(f"launch_{launch.name}({arguments})")
        if printed.memory:
            self.lines.append(f"del {', '.join(printed.memory)}")

    # products and operators

    def _view(self, view: BufferView) -> str:
        buffer = self.program.buffers[view.buffer]
        same = (view.sizes, view.strides, view.dtype) == (buffer.sizes, buffer.strides, buffer.dtype)
        if same and view.offset == 0:
            return view.buffer
        given = f"{_tuple(view.sizes)}, {_tuple(view.strides)}"
        if view.dtype is not buffer.dtype:
            return f"strided_view({view.buffer}, {view.dtype}, {given}, {host_text(view.offset)})"
        begin = host_text(view.offset)
        if buffer.kind not in ("output", "temporary"):
            begin = f"{view.buffer}.storage_offset() + {begin}"
        return f"{view.buffer}.as_strided({given}, {begin})"

    def _product(self, step: MatrixProduct) -> None:
        single = all(view.sizes[0] == 1 for view in (step.a, step.b, step.out))
        views = [_two(view) if single else view for view in (step.a, step.b, step.out)]
        a, b, out = map(self._view, views)
        if step.bias is not None:
            function = "addmm" if single else "baddbmm"
            self.lines.append(f"torch.{function}({self._view(step.bias)}, {a}, {b}, out={out})")
        else:
            self.lines.append(f"torch.{'mm' if single else 'bmm'}({a}, {b}, out={out})")

    def _call(self, step: OperatorCall) -> None:
        name = self.operators.setdefault(str(step.operator), f"operator_{len(self.operators)}")
        given = []
        for argument, value in zip(step.operator._schema.arguments, step.arguments, strict=True):
            text = self._argument(value)
            given.append(f"{argument.name}={text}" if argument.kwarg_only else text)
        call = f"{name}({', '.join(given)})"
        if not step.results:
            self.lines.append(call)
            return
        listed = len(step.operator._schema.returns) > 1
        if len(step.results) == 1 and step.results[0][:2] == (0, -1) and not listed:
            result = step.results[0][2]
            self.lines.append(f"{result} = {call}")
        else:
            self.lines.append(f"results = {call}")
            for position, element, result in step.results:
                text = f"results[{position}]" if listed else "results"
                self.lines.append(f"{result} = {text}{'' if element < 0 else f'[{element}]'}")
            self.lines.append("del results")
        for _, _, result in step.results:
            self._as_promised(self.program.buffers[result])

    def _as_promised(self, buffer: LoopBuffer) -> None:
        """What an operator gives in other strides than the graph says is copied."""
        self.lines.append(f"if {buffer.name}.stride() != {_tuple(buffer.strides)}:")
        self.lines.append(
            f"    {buffer.name} = restrided({buffer.name}, {_tuple(buffer.sizes)}, {_tuple(buffer.strides)})"
        )

    def _argument(self, value: Any) -> str:
        if isinstance(value, BufferView):
            return self._view(value)
        if isinstance(value, CallArgument):
            return host_text(value.number)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._argument, value))}]"
        if isinstance(value, (bool, int, str, type(None))):
            return repr(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.{value!r}"
        name = f"constant_of_call_{len(self.constants)}"
        self.constants[name] = value
        return name


class _Substituted:
    """Sizes of a kernel, for one call of it."""

    def __init__(self, kernel: LoopKernel, call: KernelArguments) -> None:
        self.values: Mapping[str, Size] = dict(zip(kernel.sizes, call.sizes, strict=True))

    def text(self, size: Size) -> str:
        if isinstance(size, int):
            return str(size)
        names: dict[sympy.Symbol, Size] = {s: self.values[s.name] for s in size.free_symbols}
        return host_text(size, names)


def _tuple(sizes: Sequence[Size]) -> str:
    texts = [host_text(size) for size in sizes]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def _two(view: BufferView) -> BufferView:
    """Without a batch of one."""
    return BufferView(view.buffer, view.dtype, view.sizes[1:], view.strides[1:], view.offset)


def _index_type(program: LoopProgram, number: int, kernel: LoopKernel) -> str:
    return "tl.int32" if all(size < LARGEST for size in _extents(program, number, kernel)) else "tl.int64"


def _extents(program: LoopProgram, number: int, kernel: LoopKernel) -> Iterator[int]:
    """How many elements and iterations a kernel numbers; more than any where that is not known."""
    if kernel.sizes:
        yield LARGEST
    for step in program.steps:
        if isinstance(step, KernelLaunch) and step.kernel == number:
            for call in step.calls:
                for name in call.buffers:
                    elements = program.buffers[name].elements
                    yield elements if isinstance(elements, int) else LARGEST
    for nest in kernel.nests:
        rows = 1
        for loop in nest.rows:
            rows *= loop.count if isinstance(loop.count, int) else LARGEST
        for phase in nest.phases:
            for part in phase.parts:
                total = rows
                for loop in part.columns:
                    total *= loop.count if isinstance(loop.count, int) else LARGEST
                yield total
