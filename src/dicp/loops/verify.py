"""Checks the rules of the loop IR, so that no vendor has to: an error here is one of the pass that made the kernel."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dicp.errors import InvalidGraphError
from dicp.loops.index import Affine, free_symbols
from dicp.loops.ir import (
    CheckedIndex,
    Compute,
    Convert,
    IndexValue,
    Instruction,
    KernelLaunch,
    LiteralValue,
    Load,
    LoopKernel,
    LoopProgram,
    PhasePart,
    Reduce,
    RowNest,
    Scan,
    Store,
)
from dicp.loops.primitives import PRIMITIVES, Value, held, result_dtype

__all__ = ["operands_of", "results_of", "verify_kernel", "verify_program"]

_RESULTS = {"argmax": 2, "argmin": 2, "welford": 2}


def operands_of(instruction: Instruction) -> tuple[Value, ...]:
    """The values that an instruction reads, besides those in its index."""
    match instruction:
        case Load(_, _, _, when, _):
            return () if when is None else (when,)
        case Store(_, _, operand, when):
            return (operand,) if when is None else (operand, when)
        case Compute(_, _, operands):
            return tuple(o for o in operands if isinstance(o, Value))
        case Convert(_, operand, _) | CheckedIndex(_, operand, _, _):
            return (operand,)
        case Reduce(_, _, operands) | Scan(_, _, operands):
            return operands
        case _:
            return ()


def results_of(instruction: Instruction) -> tuple[Value, ...]:
    """The values that an instruction makes."""
    match instruction:
        case Store():
            return ()
        case Reduce(results, _, _) | Scan(results, _, _):
            return results
        case _:
            return (instruction.result,)


def index_of(instruction: Instruction) -> Affine | None:
    return instruction.index if isinstance(instruction, (Load, Store, IndexValue)) else None


class _KernelVerifier:
    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel
        self.parameters = {p.name: p for p in kernel.parameters}
        self.loaded: set[str] = set()
        self.stored: set[str] = set()

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            raise InvalidGraphError(
                f"invalid kernel: {text}. This is an error of dicp's fusion; please report it.\n{self.kernel}"
            )

    def run(self) -> None:
        self.check(len(self.parameters) == len(self.kernel.parameters), "two parameters of one name")
        for nest in self.kernel.nests:
            self._nest(nest)
        for p in self.kernel.parameters:
            self.check(
                p.read == (p.name in self.loaded),
                f"{p.name}: read is {p.read}, and it is{'' if p.name in self.loaded else ' not'} loaded",
            )
            self.check(
                p.written == (p.name in self.stored),
                f"{p.name}: written is {p.written}, and it is{'' if p.name in self.stored else ' not'} stored to",
            )

    def _nest(self, nest: RowNest) -> None:
        scratch = {r.name: r.dtype for r in nest.scratch}
        dtypes = {name: p.dtype for name, p in self.parameters.items()} | scratch
        row_values: dict[str, Value] = {}
        rows = [loop.variable for loop in nest.rows]
        for phase in nest.phases:
            self.check(bool(phase.parts), "a phase without parts")
            for part in phase.parts:
                reductions = tuple((r.kind, r.results) for r in part.body if isinstance(r, Reduce))
                self.check(
                    reductions == tuple((r.kind, r.results) for r in phase.reductions),
                    "parts of a phase differ in their reductions",
                )
                self.check(len(phase.parts) == 1 or not phase.scans, "a scan in a phase of several parts")
                self._part(part, rows, dict(row_values), dtypes)
            for part in phase.parts:
                if not part.columns:
                    row_values |= {v.name: v for i in part.body for v in results_of(i)}
            row_values |= {v.name: v for r in phase.reductions for v in r.results}

    def _part(
        self, part: PhasePart, rows: list[str], values: dict[str, Value], dtypes: dict[str, torch.dtype]
    ) -> None:
        loops = [*rows, *(loop.variable for loop in part.columns)]
        self.check(len(set(loops)) == len(loops), "two loops with one variable")
        for instruction in part.body:
            for operand in operands_of(instruction):
                self.check(
                    values.get(operand.name) == operand,
                    f"{operand.name} is read before it is computed, or as another dtype",
                )
            index = index_of(instruction)
            if index is not None:
                self._index(index, loops, values)
            self._types(instruction, dtypes)
            results = results_of(instruction)
            for result in results:
                self.check(result.name not in values, f"{result.name} is computed twice")
            if not isinstance(instruction, Reduce):
                values |= {v.name: v for v in results}

    def _index(self, index: Affine, loops: Iterable[str], values: dict[str, Value]) -> None:
        for name in index.variables():
            known = name in loops or (name in values and values[name].dtype is torch.int64)
            self.check(known, f"{name} in an index is neither a loop's variable nor an int64 of the body")
        for symbol in free_symbols(index.sizes()):
            self.check(symbol in self.kernel.sizes, f"{symbol} is not among the kernel's sizes")

    def _types(self, i: Instruction, dtypes: dict[str, torch.dtype]) -> None:
        match i:
            case Load(result, buffer, _, when, _):
                self.check(
                    buffer in dtypes and held(dtypes[buffer]) is result.dtype,
                    f"{result.name} is loaded from {buffer} as {result.dtype}",
                )
                self.check(when is None or when.dtype is torch.bool, f"the guard of {result.name} is no bool")
                self.loaded.add(buffer)
            case Store(buffer, _, operand, _):
                self.check(
                    buffer in dtypes and held(dtypes[buffer]) is operand.dtype,
                    f"{operand.name} of {operand.dtype} is stored to {buffer}",
                )
                self.stored.add(buffer)
            case Compute(result, primitive, operands):
                entry = PRIMITIVES[primitive]
                values = [o for o in operands if isinstance(o, Value)]
                if primitive == "select":
                    self.check(
                        isinstance(operands[0], Value) and operands[0].dtype is torch.bool,
                        "select without a bool",
                    )
                    values = [o for o in operands[1:] if isinstance(o, Value)]
                of = {v.dtype for v in values} or {result.dtype}
                self.check(len(operands) == entry.arity, f"{primitive} of {len(operands)} operands")
                self.check(len(of) == 1, f"{primitive} of {sorted(map(str, of))}")
                self.check(result_dtype(primitive, *of) is result.dtype, f"{primitive} gives {result.dtype}")
            case Convert(result, _, dtype):
                self.check(held(dtype) is result.dtype, f"{result.name}: a {dtype} is held in {held(dtype)}")
            case IndexValue(result, _) | CheckedIndex(result, _, _, _):
                self.check(result.dtype is torch.int64, f"{result.name}: an index is an int64")
            case Reduce(results, kind, operands) | Scan(results, kind, operands):
                places = kind.startswith("arg") or (isinstance(i, Scan) and kind in ("max", "min"))
                count = 2 if places or (kind in ("welford", "logsumexp") and isinstance(i, Reduce)) else 1
                self.check(
                    len(results) == count and len(operands) == 1 + places,
                    f"{kind} of {len(operands)} operands to {len(results)} results",
                )
                self.check(results[0].dtype is operands[0].dtype, f"{kind} changes the dtype")
            case LiteralValue():
                pass


def verify_kernel(kernel: LoopKernel) -> None:
    """Raises InvalidGraphError where a kernel breaks a rule of `dicp.loops.ir`."""
    _KernelVerifier(kernel).run()


def verify_program(program: LoopProgram) -> None:
    """All kernels; and that what a step reads was written by one before it."""
    for kernel in program.kernels:
        verify_kernel(kernel)
    ready = {
        name
        for name, buffer in program.buffers.items()
        if buffer.kind in ("input", "constant") or buffer.elements == 0
    }
    for step in program.steps:
        read, written = program.accesses(step)
        if isinstance(step, KernelLaunch):
            for call in step.calls:
                if len(set(call.buffers)) != len(call.buffers):
                    raise InvalidGraphError(f"invalid program: a buffer is given to a kernel twice: {call}")
        missing = [name for name in read if name not in ready and name not in written]
        if missing or not set(written) <= program.buffers.keys():
            raise InvalidGraphError(
                f"invalid program: {missing or written} is read before it is written, or is no buffer, in {step}"
            )
        ready |= set(written)
    for view in program.outputs:
        if view.buffer not in ready:
            raise InvalidGraphError(f"invalid program: the output {view.buffer} is never written")
