"""Kernels written by hand, as vendors' printers are tried with."""

from __future__ import annotations

import torch

from dicp.loops.index import Affine
from dicp.loops.ir import (
    Compute,
    Instruction,
    KernelParameter,
    Load,
    Loop,
    LoopKernel,
    Phase,
    PhasePart,
    Reduce,
    RowBuffer,
    RowNest,
    Store,
)
from dicp.loops.primitives import Value

FLOAT = torch.float32
I0, J0 = Affine.of("i0"), Affine.of("j0")


def t(number: int, dtype: torch.dtype = FLOAT) -> Value:
    return Value(f"t{number}", dtype)


def softmax(rows: int, columns: int) -> LoopKernel:
    """Three phases; the second keeps its results in the row's scratch."""
    row = (Loop("j0", 0, columns),)
    at = I0 * columns + J0

    def phase(*body: Instruction) -> Phase:
        return Phase((PhasePart(row, body),))

    phases = (
        phase(Load(t(0), "p0", at), Reduce((t(1),), "max", (t(0),))),
        phase(
            Load(t(2), "p0", at),
            Compute(t(3), "sub", (t(2), t(1))),
            Compute(t(4), "exp", (t(3),)),
            Store("r0", J0, t(4)),
            Reduce((t(5),), "sum", (t(4),)),
        ),
        Phase((PhasePart((), (Compute(t(6), "reciprocal", (t(5),)),)),)),
        phase(Load(t(7), "r0", J0), Compute(t(8), "mul", (t(7), t(6))), Store("p1", at, t(8))),
    )
    parameters = (KernelParameter("p0", FLOAT, True, False), KernelParameter("p1", FLOAT, False, True))
    nest = RowNest((Loop("i0", 0, rows),), phases, (RowBuffer("r0", FLOAT, columns),))
    return LoopKernel(parameters, (), (nest,))


def column_sums(rows: int, columns: int) -> LoopKernel:
    """Sums over the first dimension of bfloat16: rows of the loops are columns of memory, a vector of them at a time."""
    body = (Load(t(0), "p0", J0 * columns + I0), Reduce((t(1),), "sum", (t(0),)))
    phases = (
        Phase((PhasePart((Loop("j0", 0, rows),), body),)),
        Phase((PhasePart((), (Store("p1", I0, t(1)),)),)),
    )
    parameters = (
        KernelParameter("p0", torch.bfloat16, True, False),
        KernelParameter("p1", torch.bfloat16, False, True),
    )
    return LoopKernel(parameters, (), (RowNest((Loop("i0", 0, columns),), phases, lanes=True),))


def joined(first: int, second: int) -> LoopKernel:
    """Two vectors one behind the other: two parts of one phase."""

    def part(source: str, begin: int, end: int) -> PhasePart:
        value = t(0) if begin == 0 else t(1)
        body = (Load(value, source, J0 + -begin), Store("p2", J0, value))
        return PhasePart((Loop("j0", begin, end),), body)

    phase = Phase((part("p0", 0, first), part("p1", first, first + second)))
    parameters = tuple(KernelParameter(f"p{k}", FLOAT, k < 2, k == 2) for k in range(3))
    return LoopKernel(parameters, (), (RowNest((), (phase,)),))
