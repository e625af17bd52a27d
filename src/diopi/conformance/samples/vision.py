"""Samples of resampling, windows as columns, padding and boxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from diopi.conformance.samples import Maker, Sample, samples, table


def _boxes(make: Maker, count: int) -> torch.Tensor:
    """Corners x1, y1, x2, y2 of boxes that overlap a good deal."""
    corner = make(count, 2, low=0, high=20)
    extent = make(count, 2, low=4, high=16)
    return make.laid_out(torch.cat([corner, corner + extent], 1))


@samples("diopiNms")
def kept_boxes(make: Maker) -> Iterator[Sample]:
    for count, threshold in ((12, 0.5), (40, 0.3), (40, 0.7), (1, 0.5), (0, 0.5), (9, 0.0)):
        boxes = _boxes(make, count)
        yield {"boxes": boxes, "confidence": make(count, low=0, high=1), "iou_threshold": threshold}


def _regions(make: Maker, images: int, count: int, extent: float) -> torch.Tensor:
    """Rows of image, x1, y1, x2, y2; some reach over the border."""
    corner = make(count, 2, low=-2, high=extent / 2)
    size = make(count, 2, low=1, high=extent / 2)
    image = make.index(count, high=images).to(corner.dtype)
    return make.laid_out(torch.cat([image.unsqueeze(1), corner, corner + size], 1))


def _pooled_regions(make: Maker) -> Iterator[Sample]:
    for scale, height, width, ratio, aligned in (
        (0.5, 3, 2, 2, False),
        (1.0, 2, 4, 0, True),
        (0.25, 1, 1, 3, True),
        (1.0, 2, 2, -1, False),
    ):
        yield {
            "rois": _regions(make, 2, 5, 10 / scale),
            "spatial_scale": scale,
            "pooled_height": height,
            "pooled_width": width,
            "sampling_ratio": ratio,
            "aligned": aligned,
        }


@samples("diopiRoiAlign")
def regions(make: Maker) -> Iterator[Sample]:
    for sample in _pooled_regions(make):
        yield {**sample, "input": make(2, 3, 9, 11, low=-2, high=2)}


@samples("diopiRoiAlignBackward")
def region_gradients(make: Maker) -> Iterator[Sample]:
    images = {"batch_size": 2, "channels": 3, "height": 9, "width": 11}
    for sample in _pooled_regions(make):
        grad = make(5, 3, sample["pooled_height"], sample["pooled_width"], low=-2, high=2)
        yield {**sample, **images, "grad": grad}


table(
    "diopiGridSample",
    "input grid mode",
    *(((2, 3, 7, 6), (2, 4, 5, 2), mode) for mode in ("bilinear", "nearest", "bicubic")),
    *(((1, 2, 4, 5, 3), (1, 3, 2, 4, 3), mode) for mode in ("bilinear", "nearest")),
    input=(-2, 2),
    grid=(-1.2, 1.2),
)


_RESIZED: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((2, 3, 7), (11,)),
    ((2, 3, 7), (4,)),
    ((2, 3, 5, 6), (10, 12)),
    ((1, 2, 9, 8), (4, 13)),
    ((1, 2, 3, 4, 3), (5, 3, 6)),
)
_MODES = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}


table("diopiUpsampleNearest", "input size", *((shape, list(size)) for shape, size in _RESIZED))


@samples("diopiUpsampleNearestBackward")
def enlarged_gradients(make: Maker) -> Iterator[Sample]:
    for number, (shape, size) in enumerate(_RESIZED):
        grad, full = make(*shape[:2], *size, low=-2, high=2), number % 2 == 0
        yield {"grad_output": grad, "out_size": list(size), "in_size": list(shape if full else shape[2:])}


def _interpolations() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    for number, (shape, size) in enumerate(_RESIZED):
        for mode in _MODES[len(size)]:
            yield shape, size, {"mode": mode, "align_corners": number % 2 == 0}


@samples("diopiUpsampleLinear")
def interpolated(make: Maker) -> Iterator[Sample]:
    for shape, size, how in _interpolations():
        yield {"input": make(*shape, low=-2, high=2), "size": list(size), **how}
    yield {"input": make(2, 2, 5, 6), "size": [9, 4], "mode": "bilinear", "align_corners": False}


@samples("diopiUpsampleLinearBackward")
def interpolated_gradients(make: Maker) -> Iterator[Sample]:
    for number, (shape, size, how) in enumerate(_interpolations()):
        grad, full = make(*shape[:2], *size, low=-2, high=2), number % 2 == 0
        sizes = {"out_size": list(size), "in_size": list(shape if full else shape[2:])}
        yield {"grad_output": grad, **sizes, **how}


_COLUMNS: tuple[tuple[tuple[int, ...], dict[str, list[int]]], ...] = (
    ((2, 3, 6, 7), {"kernel_size": [2, 3], "dilation": [1, 1], "padding": [0, 0], "stride": [1, 1]}),
    ((2, 3, 6, 7), {"kernel_size": [3, 2], "dilation": [2, 1], "padding": [1, 2], "stride": [2, 3]}),
    ((3, 8, 9), {"kernel_size": [3, 3], "dilation": [1, 2], "padding": [1, 0], "stride": [2, 1]}),
    ((1, 2, 17, 19), {"kernel_size": [5, 5], "dilation": [1, 1], "padding": [2, 2], "stride": [4, 4]}),
)


def _window_count(size: tuple[int, ...], how: dict[str, list[int]]) -> int:
    count = 1
    for pixels, kernel, dilation, padding, stride in zip(size, *how.values(), strict=True):
        count *= (pixels + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return count


@samples("diopiIm2Col")
def columns(make: Maker) -> Iterator[Sample]:
    for shape, how in _COLUMNS:
        yield {"input": make(*shape), **how}


@samples("diopiCol2Im")
def images(make: Maker) -> Iterator[Sample]:
    for shape, how in _COLUMNS:
        *samples_, channels, height, width = shape
        kernel = how["kernel_size"]
        column = channels * kernel[0] * kernel[1]
        windows = _window_count((height, width), how)
        given = make(*samples_, column, windows, low=-2, high=2)
        yield {"input": given, "output_size": [height, width], **how}


# the shape, that of the windows, dim, size, step
_UNFOLDED = (
    ((4, 9), (4, 4, 3), 1, 3, 2),
    ((4, 9), (3, 9, 2), -2, 2, 1),
    ((2, 11, 3), (2, 2, 3, 4), 1, 4, 5),
    ((53, 61), (16, 61, 7), 0, 7, 3),
    ((5,), (1, 5), 0, 5, 1),
)
table("diopiUnfold", "input dim size step", *((shape, *how) for shape, _, *how in _UNFOLDED))
table(
    "diopiUnfoldBackward",
    "grad_output input_sizes dim size step",
    *((windows, list(shape), *how) for shape, windows, *how in _UNFOLDED),
    grad_output=(-2, 2),
)


@samples("diopiPad")
def padded(make: Maker) -> Iterator[Sample]:
    number = 1.5 if make.floating else 1.0
    yield {"input": make(3, 4), "pad": [1, 2], "mode": "constant", "value": number}
    yield {"input": make(2, 3, 4, 5), "pad": [1, 0, 0, 2, 1, 1], "mode": "constant"}
    yield {"input": make(5, 7), "pad": [-1, 2, 1, -2], "mode": "constant", "value": 0.0}
    yield {"input": make(61, 71), "pad": [3, 3, 2, 2], "mode": "constant", "value": number}
    yield {"input": make(2, 3, 6), "pad": [2, 1], "mode": "circular"}
    if make.dtype == torch.bool:
        return
    for mode in ("reflect", "replicate"):
        yield {"input": make(2, 3, 6), "pad": [2, 1], "mode": mode}
        yield {"input": make(2, 3, 6, 5), "pad": [2, 1, 0, 3], "mode": mode}
        yield {"input": make(1, 2, 4, 3, 4), "pad": [1, 2, 1, 0, 2, 1], "mode": mode}
