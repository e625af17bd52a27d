"""References of operators on images and boxes, by their definition."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from diopi.conformance.references.gradients import upcast


def kept_boxes(boxes: Tensor, confidence: Tensor, iou_threshold: float) -> Tensor:
    """Indices of boxes (x1, y1, x2, y2), the surest first; one that overlaps a kept one too much is left out."""
    corners = upcast(boxes)
    order = torch.sort(confidence, descending=True, stable=True).indices.tolist()
    area = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    kept: list[int] = []
    for i in order:
        if kept:
            others = corners[kept]
            extent = torch.minimum(others[:, 2:], corners[i, 2:]) - torch.maximum(
                others[:, :2], corners[i, :2]
            )
            common = extent.clamp(min=0).prod(1)
            if bool((common / (area[kept] + area[i] - common) > iou_threshold).any()):
                continue
        kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


def roi_aligned(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Every region (image, x1, y1, x2, y2) resampled to a grid of bins, each the mean of points in it."""
    image, regions = upcast(input), upcast(rois)
    result = image.new_zeros(rois.shape[0], input.shape[1], pooled_height, pooled_width)
    for k, (of_rows, of_columns) in enumerate(
        _sampling(regions, spatial_scale, (pooled_height, pooled_width), image, sampling_ratio, aligned)
    ):
        result[k] = of_rows @ image[int(regions[k, 0])] @ of_columns.T
    return result.to(input.dtype)


def roi_align_gradient(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    shape: list[int],
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """The gradient of the images of `roi_aligned`, which have this shape."""
    gradient, regions = upcast(grad), upcast(rois)
    result = gradient.new_zeros(shape)
    for k, (of_rows, of_columns) in enumerate(
        _sampling(regions, spatial_scale, (pooled_height, pooled_width), result, sampling_ratio, aligned)
    ):
        result[int(regions[k, 0])] += of_rows.T @ gradient[k] @ of_columns
    return result.to(grad.dtype)


def resized_gradient(
    mode: str, grad_output: Tensor, out_size: list[int], in_size: list[int], align_corners: bool | None
) -> Tensor:
    """The gradient of an interpolation. The size of its input may or may not begin with samples and channels."""
    spatial = list(in_size)[-len(out_size) :]
    leaf = torch.zeros(*grad_output.shape[:2], *spatial, dtype=grad_output.dtype, requires_grad=True)
    with torch.enable_grad():
        resized = F.interpolate(leaf, out_size, mode=mode, align_corners=align_corners)
    return torch.autograd.grad(resized, leaf, grad_output)[0]


def folded_windows(grad_output: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    """The windows of `unfold` added up where they came from."""
    windows = upcast(grad_output)
    total = windows.new_zeros(input_sizes)
    if not input_sizes:
        return (total + windows.sum()).to(grad_output.dtype)
    axis = dim % len(input_sizes)
    for i in range(grad_output.shape[axis]):
        total.narrow(axis, i * step, size).add_(windows.select(axis, i).movedim(-1, axis))
    return total.to(grad_output.dtype)


def _sampling(
    regions: Tensor, scale: float, bins: tuple[int, int], image: Tensor, ratio: int, aligned: bool
) -> list[tuple[Tensor, Tensor]]:
    """For every region two matrices, [bins, rows] and [bins, columns]: how much each pixel counts in each bin."""
    shift = 0.5 if aligned else 0.0
    matrices = []
    for region in regions:
        x1, y1, x2, y2 = (region[1:] * scale - shift).unbind()
        axes = []
        for begin, end, count, pixels in (
            (y1, y2, bins[0], image.shape[2]),
            (x1, x2, bins[1], image.shape[3]),
        ):
            length = end - begin if aligned else (end - begin).clamp(min=1.0)
            axes.append(_axis_weights(begin, length, count, pixels, ratio))
        matrices.append((axes[0], axes[1]))
    return matrices


def _axis_weights(begin: Tensor, length: Tensor, bins: int, pixels: int, ratio: int) -> Tensor:
    """Linear interpolation at equally spaced points of every bin, and their mean."""
    weights = begin.new_zeros(bins, pixels)
    points = ratio if ratio > 0 else math.ceil(float(length) / bins)
    if points <= 0:
        return weights
    within = (torch.arange(points, dtype=begin.dtype) + 0.5) / points
    positions = begin + (torch.arange(bins, dtype=begin.dtype).unsqueeze(1) + within) * (length / bins)
    inside = ((positions >= -1) & (positions <= pixels)).to(begin.dtype)
    positions = positions.clamp(0, pixels - 1)
    below = positions.floor().clamp(max=max(pixels - 2, 0)).long()
    upper = positions - below
    weights.scatter_add_(1, below, (1 - upper) * inside)
    weights.scatter_add_(1, (below + 1).clamp(max=pixels - 1), upper * inside)
    return weights / points
