"""Samples of data movement: filling, copying, joining, splitting, views written out, memory formats."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, number, samples, table

_TO_THE_END = 2**63 - 1
_CONTIGUOUS, _CHANNELS_LAST, _CHANNELS_LAST_3D, _PRESERVE, _CHANNELS_LAST_1D = range(5)


# ---- filling and copying ----


table(
    "diopiFill",
    "input value",
    ((3, 5), number),
    ((2, 3, 4, 5), 1),
    ((), number),
    ((0, 3), number),
    ((71, 73), 0),
    ((7,), True),
    floating=[((5, 3), math.inf), ((5, 3), math.nan)],
)
table("diopiZeroInp", "self", ((3, 5),), ((2, 3, 4, 5),), ((),), ((0, 3),), ((71, 73),))


@samples("diopiOnes", "diopiZeros")
def constants(make: Maker) -> Iterator[Sample]:
    for shape in ((3, 5), (2, 3, 4, 5), (), (0, 3), (71, 73)):
        yield {"out": make(*shape, written=True), "size": list(shape)}


@samples("diopiCopyInp")
def copy(make: Maker) -> Iterator[Sample]:
    for shape in ((3, 5), (2, 3, 4, 5), (), (0, 3), (71, 73)):
        yield {"src": make(*shape), "dest": make(*shape, written=True)}
    yield {"src": make(4), "dest": make(2, 3, 4, written=True)}
    yield {"src": make(3, 1), "dest": make(2, 3, 4, written=True)}
    for other in _castable(make.dtype):
        yield {"src": make(3, 5, low=0, high=9), "dest": make(3, 5, dtype=other, written=True)}


@samples("diopiCastDtype")
def cast(make: Maker) -> Iterator[Sample]:
    for other in _castable(make.dtype):
        yield {"input": make(3, 5, low=0, high=9), "out": make.out(3, 5, dtype=other)}
    yield {"input": make(2, 3, 4, 5), "out": make.out(2, 3, 4, 5)}
    yield {"input": make(71, 73), "out": make.out(71, 73, dtype=_wider(make.dtype))}
    yield {"input": make(), "out": make.out(dtype=_wider(make.dtype))}
    yield {"input": make(0, 3), "out": make.out(0, 3, dtype=_wider(make.dtype))}
    if make.dtype.is_floating_point:
        yield {"input": make(7, 9), "out": make.out(7, 9, dtype=torch.bfloat16)}


def _castable(dtype: torch.dtype) -> list[torch.dtype]:
    if dtype.is_complex:
        return [torch.complex64, torch.complex128]
    return [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ]


def _wider(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


# ---- joining and splitting ----


table(
    "diopiCat",
    "tensors num_inputs dim",
    ([(2, 3), (4, 3)], 2, 0),
    ([(2, 3), (2, 1), (2, 5)], 3, 1),
    ([(2, 3, 4), (2, 3, 1)], 2, -1),
    ([(5,)], 1, 0),
    ([(0, 3), (2, 3)], 2, 0),
    ([(2, 3, 4, 5), (2, 1, 4, 5)], 2, 1),
    ([(31, 40), (33, 40)], 2, -2),
    ([(0,), (2, 3), (1, 3)], 3, 0),
)
table(
    "diopiStack",
    "tensors numTensors dim",
    ([(3, 5)] * 2, 2, 0),
    ([(3, 5)] * 3, 3, 1),
    ([(3, 5)] * 2, 2, -1),
    ([()] * 4, 4, 0),
    ([(2, 3, 4)], 1, 2),
    ([(0, 3)] * 2, 2, 1),
    ([(17, 41)] * 3, 3, -3),
    ([(2, 3, 4, 5)] * 2, 2, 1),
)
table(
    "diopiSplitWithSizes",
    "input splitSizes dim num_outs",
    ((7, 3), [2, 5], 0, 2),
    ((2, 9), [1, 3, 5], 1, 3),
    ((2, 3, 6), [6], -1, 1),
    ((4,), [0, 4], 0, 2),
    ((2, 5, 4, 3), [2, 3], -3, 2),
    ((50, 61), [7, 43], 0, 2),
)
table(
    "diopiMeshGrid",
    "inputs inputsNum",
    ([(3,), (4,)], 2),
    ([(5,)], 1),
    ([(2,), (3,), (4,)], 3),
    ([(1,), (7,)], 2),
    ([(17,), (19,)], 2),
    ([(3,), (), (2,)], 3),
)


# ---- the results of views ----


table(
    "diopiTranspose",
    "input dim0 dim1",
    ((3, 5), 0, 1),
    ((2, 3, 4), 0, -1),
    ((2, 3, 4, 5), 1, 2),
    ((2, 3, 4, 5), -1, -3),
    ((7,), 0, 0),
    ((), 0, -1),
    ((0, 3), 0, 1),
    ((67, 71), 1, 0),
)
table(
    "diopiPermute",
    "input dims",
    ((3, 5), [1, 0]),
    ((2, 3, 4), [2, 0, 1]),
    ((2, 3, 4, 5), [0, 2, 3, 1]),
    ((2, 3, 4, 5), [-1, 0, -3, 2]),
    ((6,), [0]),
    ((), []),
    ((2, 0, 3), [1, 2, 0]),
    ((9, 23, 25), [1, 2, 0]),
)


@samples("diopiExpand")
def expand(make: Maker) -> Iterator[Sample]:
    for shape, target in (
        ((3, 1), (3, 4)),
        ((4,), (2, 3, 4)),
        ((), (2, 3)),
        ((1,), (0,)),
        ((2, 1, 4, 1), (2, 3, 4, 5)),
        ((3, 5), (3, 5)),
        ((1, 73), (71, 73)),
    ):
        yield {"input": make(*shape), "out": make.out(*target)}


# the shape, that of what is selected, dim, index
_SELECTED = (
    ((3, 5), (5,), 0, 1),
    ((3, 5), (3,), 1, -1),
    ((2, 3, 4), (2, 4), -2, 2),
    ((7,), (), 0, 6),
    ((2, 3, 4, 5), (2, 4, 5), 1, -3),
    ((4, 0), (0,), 0, 2),
    ((41, 43), (41,), -1, 17),
)
table("diopiSelect", "input dim index", *((shape, *how) for shape, _, *how in _SELECTED))
table("diopiSelectScatter", "input src dim index", *_SELECTED)
table(
    "diopiSelectBackward",
    "grad_output input_sizes dim index",
    *((selected, list(shape), *how) for shape, selected, *how in _SELECTED),
)

# the shape, that of the slice, dim, start, end, step
_SLICES = (
    ((7, 3), (4, 3), 0, 1, 5, 1),
    ((7, 3), (4, 3), 0, 0, _TO_THE_END, 2),
    ((2, 9), (2, 2), 1, -6, -1, 3),
    ((2, 3, 8), (2, 3, 6), -1, 2, 100, 1),
    ((5, 4), (0, 4), 0, 3, 3, 1),
    ((2, 6, 3, 4), (2, 3, 3, 4), 1, 1, 6, 2),
    ((67, 73), (67, 17), 1, 5, 70, 4),
)
table("diopiSlice", "input dim start end step", *((shape, *how) for shape, _, *how in _SLICES))
table(
    "diopiSliceScatter",
    "src input dim start end step",
    *((part, shape, *how) for shape, part, *how in _SLICES),
)
table(
    "diopiSliceBackward",
    "grad_output input_sizes dim start end step",
    *((part, list(shape), *how) for shape, part, *how in _SLICES),
)


# ---- other positions ----


table(
    "diopiFlip",
    "input dims",
    ((3, 5), [0]),
    ((3, 5), [1, 0]),
    ((2, 3, 4), [-1]),
    ((2, 3, 4, 5), [1, -1]),
    ((7,), [0]),
    ((3, 4), []),
    ((0, 3), [0]),
    ((67, 71), [1]),
)
table(
    "diopiRoll",
    "input shifts dims",
    ((3, 5), [1], [0]),
    ((3, 5), [-2, 7], [0, 1]),
    ((3, 5), [4], []),
    ((2, 3, 4), [1, 1], [-1, -2]),
    ((2, 3, 4, 5), [2], [2]),
    ((7,), [0], [0]),
    ((0, 3), [1], [1]),
    ((67, 71), [13], [-1]),
)
table(
    "diopiRepeat",
    "input repeats_size",
    ((3, 5), [2, 1]),
    ((3,), [2, 4]),
    ((2, 3, 4), [1, 2, 3]),
    ((), [3]),
    ((), []),
    ((2, 3), [0, 2]),
    ((2, 3, 2, 3), [1, 2, 1, 2]),
    ((19, 17), [3, 5]),
)
table(
    "diopiTril diopiTriu diopiTriuInp",
    "input diagonal",
    ((4, 4), 0),
    ((3, 5), 1),
    ((5, 3), -1),
    ((2, 3, 4), 2),
    ((2, 2, 5, 3), -2),
    ((3, 3), 7),
    ((3, 0), 0),
    ((67, 71), -5),
)


# ---- memory formats ----


table(
    "diopiContiguous",
    "input memoryFormat",
    ((3, 5), _CONTIGUOUS),
    ((2, 3, 4, 5), _CONTIGUOUS),
    ((2, 3, 4, 5), _CHANNELS_LAST),
    ((2, 3, 2, 4, 3), _CHANNELS_LAST_3D),
    ((2, 3, 4, 5), _PRESERVE),
    ((2, 3, 7), _CHANNELS_LAST_1D),
    ((), _CONTIGUOUS),
    ((67, 71), _CONTIGUOUS),
)
table("diopiNativeMemoryFormatCast", "in format", *((s, -1) for s in ((3, 5), (2, 3, 4, 5), (), (67, 71))))
table("diopiGetNativeMemoryFormat", "input", ((3, 5),), ((2, 3, 4, 5),), ((),))
table("diopiTensorDestructionHook", "ptr", (None,))
