"""Kernels and programs as text for people: what `dicp explain` shows."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dicp.loops.ir import (
    CheckedIndex,
    Compute,
    Convert,
    IndexValue,
    Instruction,
    KernelLaunch,
    LiteralValue,
    Load,
    Loop,
    LoopKernel,
    LoopProgram,
    MatrixProduct,
    OperatorCall,
    ProgramStep,
    Reduce,
    RowNest,
    Scan,
    Store,
)
from dicp.loops.primitives import Value

__all__ = ["kernel_text", "program_text"]


def kernel_text(kernel: LoopKernel, name: str = "kernel") -> str:
    parameters = [
        f"{p.name}: {_short(p.dtype)}{' inout' if p.read and p.written else ' out' if p.written else ''}"
        for p in kernel.parameters
    ]
    lines = [f"{name}({', '.join([*parameters, *kernel.sizes])}):"]
    for nest in kernel.nests:
        lines += _nest(nest)
    return "\n".join(lines) + "\n"


def _nest(nest: RowNest) -> Iterator[str]:
    indent = "  "
    for loop in nest.rows:
        yield f"{indent}{_loop(loop, 'row')}{' (lanes)' if nest.lanes and loop is nest.rows[-1] else ''}"
        indent += "  "
    if not nest.rows:
        yield f"{indent}one row"
        indent += "  "
    for buffer in nest.scratch:
        yield f"{indent}scratch {buffer.name}: {_short(buffer.dtype)}[{buffer.size}]"
    for number, phase in enumerate(nest.phases):
        yield f"{indent}phase {number}"
        for part in phase.parts:
            inner = indent + "  "
            for loop in part.columns:
                yield f"{inner}{_loop(loop, 'column')}"
                inner += "  "
            for instruction in part.body:
                yield f"{inner}{instruction_text(instruction)}"


def _loop(loop: Loop, kind: str) -> str:
    return f"{kind} {loop.variable} in {loop.begin}..{loop.end}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _value(value: object) -> str:
    return value.name if isinstance(value, Value) else str(value)


def instruction_text(instruction: Instruction) -> str:
    match instruction:
        case Load(result, buffer, index, when, otherwise):
            guard = "" if when is None else f" if {when.name} else {otherwise}"
            text = f"{buffer}[{index}]{guard}"
        case Store(buffer, index, operand, when):
            return f"{buffer}[{index}] = {operand.name}{'' if when is None else f' if {when.name}'}"
        case Compute(result, primitive, operands):
            text = f"{primitive}({', '.join(map(_value, operands))})"
        case Convert(result, operand, dtype):
            text = f"to_{_short(dtype)}({operand.name})"
        case LiteralValue(result, number):
            text = str(number)
        case IndexValue(result, index):
            text = f"index({index})"
        case CheckedIndex(result, operand, size, wraps):
            text = f"checked({operand.name} in {'-' if wraps else '0, '}{size})"
        case Reduce(results, kind, operands) | Scan(results, kind, operands):
            names = ", ".join(f"{v.name}: {_short(v.dtype)}" for v in results)
            what = "reduce" if isinstance(instruction, Reduce) else "scan"
            return f"{names} = {what}_{kind}({', '.join(map(_value, operands))})"
    return f"{result.name}: {_short(result.dtype)} = {text}"


def program_text(program: LoopProgram) -> str:
    lines = []
    for buffer in program.buffers.values():
        lines.append(
            f"{buffer.name}: {buffer.kind} {_short(buffer.dtype)}{list(buffer.sizes)} strides {list(buffer.strides)}"
        )
    lines += [step_text(step) for step in program.steps]
    lines += [f"return {', '.join(view.buffer for view in program.outputs)}", ""]
    lines += [kernel_text(kernel, f"kernel{number}") for number, kernel in enumerate(program.kernels)]
    return "\n".join(lines)


def step_text(step: ProgramStep) -> str:
    match step:
        case KernelLaunch(kernel, calls):
            return "; ".join(
                f"kernel{kernel}({', '.join([*call.buffers, *map(str, call.sizes)])})" for call in calls
            )
        case MatrixProduct(a, b, out, bias):
            return f"{out.buffer} = {a.buffer} @ {b.buffer}{'' if bias is None else f' + {bias.buffer}'}"
        case OperatorCall(operator, _, results, _):
            given = ", ".join(view.buffer for view in step.views())
            return f"{', '.join(buffer for _, _, buffer in results)} = {operator}({given})"
