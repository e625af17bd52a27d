"""Samples of data movement: filling, copying, joining, splitting, views written out, memory formats."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, samples

_TO_THE_END = 2**63 - 1
_CONTIGUOUS, _CHANNELS_LAST, _CHANNELS_LAST_3D, _PRESERVE, _CHANNELS_LAST_1D = range(5)


# ---- filling and copying ----


@samples("diopiFill")
def fill(make: Maker) -> Iterator[Sample]:
    number = -2.5 if make.floating else 1
    yield {"input": make(3, 5, written=True), "value": number}
    yield {"input": make(2, 3, 4, 5, written=True), "value": 1}
    yield {"input": make(written=True), "value": number}
    yield {"input": make(0, 3, written=True), "value": number}
    yield {"input": make(71, 73, written=True), "value": 0}
    yield {"input": make(7, written=True), "value": True}
    if make.floating:
        yield {"input": make(5, 3, written=True), "value": float("inf")}
        yield {"input": make(5, 3, written=True), "value": float("nan")}


@samples("diopiZeroInp")
def zero(make: Maker) -> Iterator[Sample]:
    for shape in ((3, 5), (2, 3, 4, 5), (), (0, 3), (71, 73)):
        yield {"self": make(*shape, written=True)}


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


@samples("diopiCat")
def cat(make: Maker) -> Iterator[Sample]:
    for shapes, dim in (
        (((2, 3), (4, 3)), 0),
        (((2, 3), (2, 1), (2, 5)), 1),
        (((2, 3, 4), (2, 3, 1)), -1),
        (((5,),), 0),
        (((0, 3), (2, 3)), 0),
        (((2, 3, 4, 5), (2, 1, 4, 5)), 1),
        (((31, 40), (33, 40)), -2),
        (((0,), (2, 3), (1, 3)), 0),
    ):
        tensors = [make(*shape) for shape in shapes]
        yield {"tensors": tensors, "num_inputs": len(tensors), "dim": dim}


@samples("diopiStack")
def stack(make: Maker) -> Iterator[Sample]:
    for count, shape, dim in (
        (2, (3, 5), 0),
        (3, (3, 5), 1),
        (2, (3, 5), -1),
        (4, (), 0),
        (1, (2, 3, 4), 2),
        (2, (0, 3), 1),
        (3, (17, 41), -3),
        (2, (2, 3, 4, 5), 1),
    ):
        yield {"tensors": [make(*shape) for _ in range(count)], "numTensors": count, "dim": dim}


@samples("diopiSplitWithSizes")
def split(make: Maker) -> Iterator[Sample]:
    for shape, sizes, dim in (
        ((7, 3), [2, 5], 0),
        ((2, 9), [1, 3, 5], 1),
        ((2, 3, 6), [6], -1),
        ((4,), [0, 4], 0),
        ((2, 5, 4, 3), [2, 3], -3),
        ((50, 61), [7, 43], 0),
    ):
        yield {"input": make(*shape), "splitSizes": sizes, "dim": dim, "num_outs": len(sizes)}


@samples("diopiMeshGrid")
def mesh_grid(make: Maker) -> Iterator[Sample]:
    for lengths in ((3, 4), (5,), (2, 3, 4), (1, 7), (17, 19)):
        yield {"inputs": [make(length) for length in lengths], "inputsNum": len(lengths)}
    yield {"inputs": [make(3), make(), make(2)], "inputsNum": 3}


# ---- the results of views ----


@samples("diopiTranspose")
def transpose(make: Maker) -> Iterator[Sample]:
    for shape, first, second in (
        ((3, 5), 0, 1),
        ((2, 3, 4), 0, -1),
        ((2, 3, 4, 5), 1, 2),
        ((2, 3, 4, 5), -1, -3),
        ((7,), 0, 0),
        ((), 0, -1),
        ((0, 3), 0, 1),
        ((67, 71), 1, 0),
    ):
        yield {"input": make(*shape), "dim0": first, "dim1": second}


@samples("diopiPermute")
def permute(make: Maker) -> Iterator[Sample]:
    for shape, dims in (
        ((3, 5), [1, 0]),
        ((2, 3, 4), [2, 0, 1]),
        ((2, 3, 4, 5), [0, 2, 3, 1]),
        ((2, 3, 4, 5), [-1, 0, -3, 2]),
        ((6,), [0]),
        ((), []),
        ((2, 0, 3), [1, 2, 0]),
        ((9, 23, 25), [1, 2, 0]),
    ):
        yield {"input": make(*shape), "dims": dims}


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


@samples("diopiSelect")
def select(make: Maker) -> Iterator[Sample]:
    for shape, dim, index in _SELECTED:
        yield {"input": make(*shape), "dim": dim, "index": index}


@samples("diopiSelectBackward")
def select_backward(make: Maker) -> Iterator[Sample]:
    for shape, dim, index in _SELECTED:
        yield {
            "grad_output": make(*_without(shape, dim)),
            "input_sizes": list(shape),
            "dim": dim,
            "index": index,
        }


@samples("diopiSelectScatter")
def select_scatter(make: Maker) -> Iterator[Sample]:
    for shape, dim, index in _SELECTED:
        yield {"input": make(*shape), "src": make(*_without(shape, dim)), "dim": dim, "index": index}


_SELECTED: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((3, 5), 0, 1),
    ((3, 5), 1, -1),
    ((2, 3, 4), -2, 2),
    ((7,), 0, 6),
    ((2, 3, 4, 5), 1, -3),
    ((4, 0), 0, 2),
    ((41, 43), -1, 17),
)


def _without(shape: tuple[int, ...], dim: int) -> list[int]:
    sizes = list(shape)
    del sizes[dim]
    return sizes


@samples("diopiSlice")
def slice_(make: Maker) -> Iterator[Sample]:
    for shape, dim, start, end, step in _SLICES:
        yield {"input": make(*shape), "dim": dim, "start": start, "end": end, "step": step}


@samples("diopiSliceBackward")
def slice_backward(make: Maker) -> Iterator[Sample]:
    for shape, dim, start, end, step in _SLICES:
        grad = make(*_sliced(shape, dim, start, end, step))
        sizes = list(shape)
        yield {
            "grad_output": grad,
            "input_sizes": sizes,
            "dim": dim,
            "start": start,
            "end": end,
            "step": step,
        }


@samples("diopiSliceScatter")
def slice_scatter(make: Maker) -> Iterator[Sample]:
    for shape, dim, start, end, step in _SLICES:
        source = make(*_sliced(shape, dim, start, end, step))
        yield {"input": make(*shape), "src": source, "dim": dim, "start": start, "end": end, "step": step}


_SLICES: tuple[tuple[tuple[int, ...], int, int, int, int], ...] = (
    ((7, 3), 0, 1, 5, 1),
    ((7, 3), 0, 0, _TO_THE_END, 2),
    ((2, 9), 1, -6, -1, 3),
    ((2, 3, 8), -1, 2, 100, 1),
    ((5, 4), 0, 3, 3, 1),
    ((2, 6, 3, 4), 1, 1, 6, 2),
    ((67, 73), 1, 5, 70, 4),
)


def _sliced(shape: tuple[int, ...], dim: int, start: int, end: int, step: int) -> list[int]:
    sizes = list(shape)
    sizes[dim] = len(range(*slice(start, end, step).indices(sizes[dim])))
    return sizes


# ---- other positions ----


@samples("diopiFlip")
def flip(make: Maker) -> Iterator[Sample]:
    for shape, dims in (
        ((3, 5), [0]),
        ((3, 5), [1, 0]),
        ((2, 3, 4), [-1]),
        ((2, 3, 4, 5), [1, -1]),
        ((7,), [0]),
        ((3, 4), []),
        ((0, 3), [0]),
        ((67, 71), [1]),
    ):
        yield {"input": make(*shape), "dims": dims}


@samples("diopiRoll")
def roll(make: Maker) -> Iterator[Sample]:
    for shape, shifts, dims in (
        ((3, 5), [1], [0]),
        ((3, 5), [-2, 7], [0, 1]),
        ((3, 5), [4], []),
        ((2, 3, 4), [1, 1], [-1, -2]),
        ((2, 3, 4, 5), [2], [2]),
        ((7,), [0], [0]),
        ((0, 3), [1], [1]),
        ((67, 71), [13], [-1]),
    ):
        yield {"input": make(*shape), "shifts": shifts, "dims": dims}


@samples("diopiRepeat")
def repeat(make: Maker) -> Iterator[Sample]:
    for shape, repeats in (
        ((3, 5), [2, 1]),
        ((3,), [2, 4]),
        ((2, 3, 4), [1, 2, 3]),
        ((), [3]),
        ((), []),
        ((2, 3), [0, 2]),
        ((2, 3, 2, 3), [1, 2, 1, 2]),
        ((19, 17), [3, 5]),
    ):
        yield {"input": make(*shape), "repeats_size": repeats}


@samples("diopiTril", "diopiTriu")
def triangle(make: Maker) -> Iterator[Sample]:
    for shape, diagonal in _TRIANGLES:
        yield {"input": make(*shape), "diagonal": diagonal}


@samples("diopiTriuInp")
def triangle_in_place(make: Maker) -> Iterator[Sample]:
    for shape, diagonal in _TRIANGLES:
        yield {"input": make(*shape, written=True), "diagonal": diagonal}


_TRIANGLES: tuple[tuple[tuple[int, ...], int], ...] = (
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


@samples("diopiContiguous")
def contiguous(make: Maker) -> Iterator[Sample]:
    for shape, memory_format in (
        ((3, 5), _CONTIGUOUS),
        ((2, 3, 4, 5), _CONTIGUOUS),
        ((2, 3, 4, 5), _CHANNELS_LAST),
        ((2, 3, 2, 4, 3), _CHANNELS_LAST_3D),
        ((2, 3, 4, 5), _PRESERVE),
        ((2, 3, 7), _CHANNELS_LAST_1D),
        ((), _CONTIGUOUS),
        ((67, 71), _CONTIGUOUS),
    ):
        yield {"input": make(*shape), "memoryFormat": memory_format}


@samples("diopiNativeMemoryFormatCast")
def cast_format(make: Maker) -> Iterator[Sample]:
    for shape in ((3, 5), (2, 3, 4, 5), (), (67, 71)):
        yield {"in": make(*shape), "format": -1}


@samples("diopiGetNativeMemoryFormat")
def get_format(make: Maker) -> Iterator[Sample]:
    for shape in ((3, 5), (2, 3, 4, 5), ()):
        yield {"input": make(*shape)}


@samples("diopiTensorDestructionHook")
def destruction_hook(make: Maker) -> Iterator[Sample]:
    yield {"ptr": None}
