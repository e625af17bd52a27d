"""One C++ file for a program of loops, and what the runtime must know to run it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dicp.loops.index import Size, product
from dicp.loops.ir import (
    BufferView,
    CallArgument,
    KernelLaunch,
    LoopBuffer,
    LoopProgram,
    MatrixProduct,
    OperatorCall,
)
from dicp.loops.memory import plan_memory
from dicp.vendor.HostGraph.expressions import STORED_TYPES, size_text
from dicp.vendor.HostGraph.kernels import kernel_code
from dicp.vendor.HostGraph.program import (
    Allocation,
    AtenCall,
    CallResult,
    HostProgram,
    SizeArgument,
    TensorArgument,
    TensorInput,
    ViewOutput,
    WholeOutput,
)
from dicp.vendor.HostGraph.services import MATMUL_DTYPES, SERVICES_TEXT

__all__ = ["GeneratedProgram", "generated", "prelude"]

_PRELUDE = ("types", "sizes", "errors", "arithmetic", "functions", "reductions", "rows")


@cache
def prelude() -> str:
    """What every file begins with."""
    folder = Path(__file__).with_name("prelude")
    return SERVICES_TEXT + "".join((folder / f"{name}.h").read_text() for name in _PRELUDE)


@dataclass(frozen=True)
class GeneratedProgram:
    source: str
    host: HostProgram


def generated(
    program: LoopProgram, placeholders: int, constants: Sequence[torch.Tensor | None], device: torch.device
) -> GeneratedProgram:
    """`constants`: for each placeholder its tensor, where it is one."""
    writer = _ProgramWriter(program, placeholders, constants, device)
    return GeneratedProgram(writer.source(), writer.host())


class _ProgramWriter:
    def __init__(
        self,
        program: LoopProgram,
        placeholders: int,
        constants: Sequence[torch.Tensor | None],
        device: torch.device,
    ) -> None:
        self.program, self.placeholders, self.device = program, placeholders, device
        self.constants = constants
        self.memory = plan_memory(program)
        self.inputs = self._of_kind("input")
        self.weights = self._of_kind("constant")
        rest = [b for b in program.buffers.values() if b.kind not in ("input", "constant")]
        ordered = [*self.inputs, *self.weights, *rest]
        self.values = {buffer.name: number for number, buffer in enumerate(ordered, 1)}
        self.allocated = self._of_kind("output")
        self.symbols = list(program.symbols)
        self.calls: list[AtenCall] = []
        self.run_lines: list[str] = []
        self.segments: list[list[str]] = []
        self._steps()

    def _of_kind(self, kind: str) -> list[LoopBuffer]:
        return [b for b in self.program.buffers.values() if b.kind == kind]

    # the C++ file

    def source(self) -> str:
        lines = [prelude()]
        lines += [kernel_code(kernel, f"k{n}") for n, kernel in enumerate(self.program.kernels)]
        for number, segment in enumerate(self.segments):
            lines.append(
                f"static void segment{number}(char** values, const i64* sizes, const Services* services, void* frame) {{"
            )
            lines += [*self._symbols(), "const Run run{services, frame};", *segment, "}"]
        lines.append(
            "void dicp_segment(i64 segment, char** values, const i64* sizes, const Services* services, void* frame) {"
        )
        lines.append("switch (segment) {")
        lines += [
            f"case {n}: return segment{n}(values, sizes, services, frame);" for n in range(len(self.segments))
        ]
        lines += ["}", "}", "void dicp_plan(const i64* sizes, i64* dims) {", *self._symbols(), *self._parts()]
        lines += [f"dims[{n}] = {text};" for n, text in enumerate(self._plan())]
        lines += [
            "}",
            "void dicp_run(char** values, const i64* sizes, const Services* services, void* frame) {",
            *self._symbols(),
            *self._parts(),
            *self._places(),
            *self.run_lines,
            "}",
        ]
        return "\n".join(lines) + "\n"

    def _symbols(self) -> Iterator[str]:
        yield from (f"const i64 {name} = sizes[{n}];" for n, name in enumerate(self.symbols))

    def _parts(self) -> Iterator[str]:
        """Where the parts of the arena begin."""
        end = "0"
        for number, size in enumerate(self.memory.parts):
            yield f"const i64 part{number} = {end};"
            end = f"part{number} + size_aligned({size_text(size)})"
        yield f"const i64 arena_end = {end};"

    def _places(self) -> Iterator[str]:
        for name, place in self.memory.places.items():
            yield f"values[{self.values[name]}] = values[0] + part{place.part} + {size_text(place.offset)};"

    def _plan(self) -> Iterator[str]:
        yield "arena_end"
        for buffer in self.allocated:
            yield from map(size_text, (*buffer.sizes, *buffer.strides))
        for view in self.program.outputs:
            if not self._is_whole(view):
                yield from map(size_text, (*view.sizes, *view.strides, view.offset))

    def _is_whole(self, view: BufferView) -> bool:
        buffer = self.program.buffers[view.buffer]
        same = (view.sizes, view.strides, view.dtype) == (buffer.sizes, buffer.strides, buffer.dtype)
        return same and view.offset == 0 and buffer.kind in ("output", "result")

    # steps

    def _steps(self) -> None:
        open_segment: list[str] | None = None
        for step in self.program.steps:
            if isinstance(step, OperatorCall):
                self._call(step)
                open_segment = None
                continue
            if open_segment is None:
                open_segment = []
                self.run_lines.append(f"DICP_SEGMENT({len(self.segments)})")
                self.segments.append(open_segment)
            if isinstance(step, KernelLaunch):
                open_segment += self._launch(step)
            else:
                open_segment.append(self._product(step))

    def _launch(self, step: KernelLaunch) -> Iterator[str]:
        kernel = self.program.kernels[step.kernel]
        for call in step.calls:
            given = [
                f"({'' if p.written else 'const '}{STORED_TYPES[p.dtype]}*)values[{self.values[name]}]"
                for p, name in zip(kernel.parameters, call.buffers, strict=True)
            ]
            given += [f"(i64)({size_text(size)})" for size in call.sizes]
            yield f"k{step.kernel}({{{', '.join([*given, '&run'])}}});"

    def _address(self, view: BufferView) -> str:
        offset = product((view.offset, view.dtype.itemsize))
        return f"values[{self.values[view.buffer]}] + {size_text(offset)}"

    def _product(self, step: MatrixProduct) -> str:
        a, b, out = step.a, step.b, step.out
        numbers: list[Size] = [*out.sizes, a.sizes[2]]
        weights = [w.name for w in self.weights]
        fields = [*map(size_text, numbers)]
        for view in (a, b):
            fields += [self._address(view), *map(size_text, view.strides)]
        fields += [self._address(out), *map(size_text, out.strides[:2])]
        fields.append("nullptr" if step.bias is None else self._address(step.bias))
        fields.append(str(MATMUL_DTYPES[out.dtype]))
        fields.append(str(weights.index(b.buffer) if b.buffer in weights else -1))
        return f"DICP_MATMUL({', '.join(fields)})"

    def _call(self, step: OperatorCall) -> None:
        dims: list[Size] = []
        arguments = tuple(self._argument(argument, dims) for argument in step.arguments)
        results = []
        for number, position, name in step.results:
            buffer = self.program.buffers[name]
            results.append(CallResult(self.values[name], len(buffer.sizes), buffer.dtype, number, position))
            dims += [*buffer.sizes, *buffer.strides]
        texts = [str(len(self.calls)), *map(size_text, dims)]
        self.run_lines.append(f"DICP_CALL({', '.join(texts if len(texts) > 1 else [*texts, '0'])})")
        self.calls.append(AtenCall(step.operator, arguments, tuple(results)))

    def _argument(self, argument: Any, dims: list[Size]) -> Any:
        if isinstance(argument, BufferView):
            dims += [product((argument.offset, argument.dtype.itemsize)), *argument.sizes, *argument.strides]
            return TensorArgument(self.values[argument.buffer], len(argument.sizes), argument.dtype)
        if isinstance(argument, CallArgument):
            dims.append(argument.number)
            return SizeArgument()
        if isinstance(argument, (list, tuple)):
            return [self._argument(item, dims) for item in argument]
        return argument

    # what the runtime must know

    def host(self) -> HostProgram:
        outputs = tuple(
            WholeOutput(self.values[v.buffer])
            if self._is_whole(v)
            else ViewOutput(self.values[v.buffer], len(v.sizes), v.dtype)
            for v in self.program.outputs
        )
        return HostProgram(
            arguments=self.placeholders,
            values=len(self.values) + 1,
            inputs=tuple(self._input(buffer) for buffer in self.inputs),
            sizes=tuple(self.program.symbols.values()),
            constants=tuple(self._constant(buffer) for buffer in self.weights),
            allocations=tuple(Allocation(self.values[b.name], len(b.sizes), b.dtype) for b in self.allocated),
            calls=tuple(self.calls),
            outputs=outputs,
            weights=tuple(self.values[buffer.name] for buffer in self.weights),
            device=self.device,
        )

    def _input(self, buffer: LoopBuffer) -> TensorInput:
        sizes, strides = (
            tuple(n if isinstance(n, int) else None for n in given)
            for given in (buffer.sizes, buffer.strides)
        )
        return TensorInput(buffer.position, buffer.dtype, sizes, strides, buffer.written)

    def _constant(self, buffer: LoopBuffer) -> torch.Tensor:
        constant = self.constants[buffer.position]
        assert constant is not None, f"{buffer.name} is a constant without a value"
        return constant
