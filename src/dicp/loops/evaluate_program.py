"""Runs programs of the loop IR on the CPU: the reference for what vendors make of kernels, products and operators together.

Temporaries lie in an arena as the memory plan says. A buffer holds nonsense until it is stored to, so a forgotten store, or
a plan that lets buffers share memory wrongly, shows in the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dicp.loops.evaluate import Sizes, evaluate_kernel, size_value
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
    ProgramStep,
)
from dicp.loops.memory import MemoryPlan, lifetimes, plan_memory

__all__ = ["evaluate_program"]


def evaluate_program(
    program: LoopProgram, inputs: Sequence[Any], plan: MemoryPlan | None = None
) -> list[Tensor]:
    """A graph's outputs, for the values of its placeholders; inputs that it writes to are changed."""
    return _ProgramEvaluator(program, inputs, plan_memory(program) if plan is None else plan).run()


class _ProgramEvaluator:
    def __init__(self, program: LoopProgram, inputs: Sequence[Any], plan: MemoryPlan) -> None:
        self.program, self.plan = program, plan
        self.sizes = {name: int(inputs[position]) for name, position in program.symbols.items()}
        total, self.begins = plan.bytes_for(self.sizes)
        self.arena = torch.empty(total, dtype=torch.uint8)
        self.memory: dict[str, Tensor] = {}
        self.begun: dict[int, list[str]] = {}
        """The temporaries that each step is the first to touch."""
        for name, buffer in program.buffers.items():
            if buffer.kind in ("input", "constant"):
                self.memory[name] = inputs[buffer.position]
            elif buffer.kind == "output" or buffer.elements == 0:
                self.memory[name] = _allocated(buffer, self.sizes)
        for name, alive in lifetimes(program).items():
            if program.buffers[name].kind == "temporary":
                self.begun.setdefault(alive.first, []).append(name)

    def run(self) -> list[Tensor]:
        for number, step in enumerate(self.program.steps):
            for name in self.begun.get(number, ()):
                self.memory[name] = self._begin(name)
            self._step(step)
        return [view_of(view, self.memory, self.sizes) for view in self.program.outputs]

    def _begin(self, name: str) -> Tensor:
        """A temporary that is used from now on."""
        buffer, place = self.program.buffers[name], self.plan.places[name]
        begin = self.begins[place.part] + place.offset
        count = max(size_value(buffer.elements, self.sizes), 0)
        part = self.arena[begin : begin + count * buffer.dtype.itemsize]
        if part.numel() != count * buffer.dtype.itemsize:
            raise IndexError(f"{name} lies outside of the arena of {self.arena.numel()} bytes")
        return _strided(buffer, part.view(buffer.dtype), self.sizes)

    def _step(self, step: ProgramStep) -> None:
        match step:
            case KernelLaunch(kernel, calls):
                for call in calls:
                    _launch(self.program.kernels[kernel], call, self.memory, self.sizes)
            case MatrixProduct(a, b, out, bias):
                result = torch.bmm(view_of(a, self.memory, self.sizes), view_of(b, self.memory, self.sizes))
                if bias is not None:
                    result = result + view_of(bias, self.memory, self.sizes)
                view_of(out, self.memory, self.sizes).copy_(result)
            case OperatorCall():
                _call(step, self.memory, self.sizes, self.program)


def _allocated(buffer: LoopBuffer, sizes: Sizes) -> Tensor:
    return _strided(
        buffer, torch.empty(max(size_value(buffer.elements, sizes), 0), dtype=buffer.dtype), sizes
    )


def _strided(buffer: LoopBuffer, storage: Tensor, sizes: Sizes) -> Tensor:
    """A buffer's memory as a tensor, filled with what makes a forgotten store show."""
    shape, strides = ([size_value(s, sizes) for s in given] for given in (buffer.sizes, buffer.strides))
    floating = buffer.dtype.is_floating_point or buffer.dtype.is_complex
    storage.fill_(float("nan") if floating else 77 if buffer.dtype is not torch.bool else True)
    return torch.as_strided(storage, shape, strides, storage.storage_offset())


def _flat(tensor: Tensor) -> Tensor:
    """All of a tensor's memory from its first element on, as one dimension."""
    if not tensor.numel():
        return tensor.new_empty(0)
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return torch.as_strided(tensor, (extent,), (1,))


def _launch(kernel: LoopKernel, call: KernelArguments, memory: Mapping[str, Tensor], sizes: Sizes) -> None:
    evaluate_kernel(
        kernel, [_flat(memory[name]) for name in call.buffers], [size_value(s, sizes) for s in call.sizes]
    )


def view_of(view: BufferView, memory: Mapping[str, Tensor], sizes: Sizes) -> Tensor:
    tensor = memory[view.buffer]
    shape, strides = ([size_value(s, sizes) for s in given] for given in (view.sizes, view.strides))
    if 0 in shape:
        return tensor.new_empty(shape, dtype=view.dtype)
    flat = _flat(tensor) if view.dtype is tensor.dtype else _flat(tensor).view(view.dtype)
    return torch.as_strided(flat, shape, strides, flat.storage_offset() + size_value(view.offset, sizes))


def _call(step: OperatorCall, memory: dict[str, Tensor], sizes: Sizes, program: LoopProgram) -> None:
    def given(argument: Any) -> Any:
        if isinstance(argument, BufferView):
            return view_of(argument, memory, sizes)
        if isinstance(argument, CallArgument):
            return size_value(argument.number, sizes)
        return [given(a) for a in argument] if isinstance(argument, (list, tuple)) else argument

    schema = step.operator._schema
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument, value in zip(schema.arguments, step.arguments, strict=True):
        if argument.kwarg_only:
            kwargs[argument.name] = given(value)
        else:
            args.append(given(value))
    results = step.operator(*args, **kwargs)
    results = results if len(schema.returns) > 1 else (results,)
    for position, element, name in step.results:
        result = results[position] if element < 0 else results[position][element]
        allocated = _allocated(program.buffers[name], sizes)
        fits = result.stride() == allocated.stride() and result.storage_offset() == 0
        memory[name] = result if fits else allocated.copy_(result)
