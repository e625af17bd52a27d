"""Samples of functions that make sequences, complex numbers and normalised vectors, of limits and of lists of tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, number, samples, table
from diopi.conformance.samples.elementwise import BROADCAST, LARGE, both_forms, operand, scalar_forms, written

# ---- sequences ----


@samples("diopiArange")
def arange(make: Maker) -> Iterator[Sample]:
    """Up, down, in steps that do not divide the range; the caller has allocated what comes out."""
    whole = [(0, 5, 1), (3, 3, 1), (2, 20, 3), (0, 101, 1)]
    if make.dtype != torch.uint8:
        whole += [(5, -6, -2), (-4, 4, 1)]
    for start, end, step in whole:
        yield _range(make, start, end, step, len(range(start, end, step)))
    if make.floating:
        yield _range(make, 0.0, 1.0, 0.25, 4)
        yield _range(make, -1.5, 2.25, 0.5, 8)
        yield _range(make, 0, 1250.75, 0.25, LARGE)


def _range(make: Maker, start: float, end: float, step: float, count: int) -> Sample:
    return {"out": make.out(count), "start": start, "end": end, "step": step}


@samples("diopiLinspace")
def linspace(make: Maker) -> Iterator[Sample]:
    """Both ends belong to it; one step is the start alone."""
    for start, end, steps in [(0, 10, 11), (10, 0, 6), (3, 9, 1), (1, 2, 0), (5, 5, 4), (0, 100, 101)]:
        yield {"out": make.out(steps), "start": start, "end": end, "steps": steps}
    if make.floating:
        yield {"out": make.out(7), "start": -0.5, "end": 0.5, "steps": 7}
        yield {"out": make.out(LARGE), "start": 0.25, "end": 3.75, "steps": LARGE}


# ---- complex numbers ----


@samples("diopiComplex")
def complex_of_parts(make: Maker) -> Iterator[Sample]:
    """Two parts, broadcast; the interface has complex numbers of float32 and float64 parts."""
    if make.dtype not in (torch.float32, torch.float64):
        return
    for first, second in BROADCAST:
        yield {"real": make(*first), "imag": make(*second)}


table("diopiReal diopiImag", "input", ((5, 7),), ((2, 3, 4, 5),), ((),), ((0, 3),), ((LARGE,),))


# ---- limits ----


# Either limit may be missing; where they cross, the upper one holds.
table(
    "diopiClampScalar diopiClampInpScalar",
    "input min max",
    *[((5, 7), 0, 3), ((2, 3, 9), 1), ((2, 3, 9), None, 2), ((), 0, 1), ((0, 3), 0, 1), ((LARGE,), 5, 2)],
    floating=[((4, 6), -0.25, 0.5)],
)


@samples(*scalar_forms("diopiClampMin", "diopiClampMax"))
def clamped_on_one_side(make: Maker) -> Iterator[Sample]:
    """One limit."""
    side = "min" if "Min" in make.function else "max"
    for shape, limit in [((5, 7), 1), ((), 0), ((0, 4), 2), ((LARGE,), 2), ((2, 3, 9), number(make, 0.3, 3))]:
        yield {"input": operand(make, *shape), side: limit}


@samples(*both_forms("diopiClamp"))
def clamped_by_tensors(make: Maker) -> Iterator[Sample]:
    """Limits of every element, broadcast; either may be missing."""
    for first, second in [((5, 7), (5, 7)), *BROADCAST[1:]]:
        yield {"input": operand(make, *first), "min": make(*second), "max": make(*second)}
    yield {"input": operand(make, 4, 6), "min": make(4, 1)}
    yield {"input": operand(make, 4, 6), "max": make(6)}
    if not written(make):
        yield {"input": make(4, 1), "min": make(6), "max": make(4, 6)}


@samples(*both_forms("diopiClampMin", "diopiClampMax"))
def clamped_by_tensor(make: Maker) -> Iterator[Sample]:
    """One limit of every element."""
    side = "min" if "Min" in make.function else "max"
    for first, second in [((5, 7), (5, 7)), *BROADCAST[1:]]:
        yield {"input": operand(make, *first), side: make(*second)}
    if not written(make):
        yield {"input": make(4, 1), side: make(6)}


# ---- lists ----


def _tensors(make: Maker) -> Iterator[list[torch.Tensor]]:
    """One tensor, several shapes, an empty one among them."""
    yield [operand(make, 5, 7)]
    yield [operand(make, 3), operand(make, 2, 3, 4), operand(make)]
    yield [operand(make, 17), operand(make, 0, 2), operand(make, 1, 9)]
    yield [operand(make, LARGE), operand(make, 33)]


@samples(*scalar_forms("diopiForeachadd", "diopiForeachmul"))
def each_with_number(make: Maker) -> Iterator[Sample]:
    """Every tensor of a list with one number."""
    others = [2, 3, 1, number(make, -0.5, 4)]
    for inputs, other in zip(_tensors(make), others, strict=True):
        yield {"inputs": inputs, "inputSize": len(inputs), "other": other}


@samples("diopiForeachmulTensor", "diopiForeachmulInpTensor")
def each_with_tensor(make: Maker) -> Iterator[Sample]:
    """Every tensor of a list with one number that is on the device."""
    for inputs in _tensors(make):
        yield {"inputs": inputs, "inputSize": len(inputs), "other": make()}


# ---- normalised vectors ----


@samples("diopiNormalize", "diopiNormalizeBackward")
def normalized(make: Maker) -> Iterator[Sample]:
    """Several norms, each axis, vectors that are shorter than eps."""
    for shape, p, axis, eps in [
        ((5, 7), 2.0, 1, 1e-12),
        ((2, 3, 4, 5), 2.0, 1, 1e-12),
        ((4, 6), 1.0, -1, 1e-12),
        ((6, 4), 3.0, 0, 1e-6),
        ((3, 33), 2.0, -1, 100.0),
        ((9,), 2.0, 0, 1e-12),
        ((0, 3), 2.0, 1, 1e-12),
    ]:
        sample: Sample = {"input": make(*shape), "p": p, "axis": axis, "eps": eps}
        if "Backward" in make.function:
            sample["grad_output"] = make(*shape)
        yield sample
