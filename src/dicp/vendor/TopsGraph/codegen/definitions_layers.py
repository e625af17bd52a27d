"""Operators of the builder that are layers: convolutions, pooling, norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dicp.errors import InvalidGraphError

__all__ = [
    "average_pool",
    "batch_norm_grad",
    "batch_norm_inference",
    "batch_norm_training",
    "conv2d",
    "convolution",
    "layer_norm",
    "max_pool2d",
    "select_and_scatter",
]

aten = torch.ops.aten


def convolution(
    x: Tensor,
    kernel: Tensor,
    dims: Sequence[Any],
    strides: Sequence[int],
    padding: Sequence[Sequence[int]],
    x_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
    reversal: Sequence[bool],
    _auto_pad: str,
    feature_groups: int,
    batch_groups: int,
    _precision: Sequence[str],
) -> Tensor:
    """The general convolution: dimensions in any order, gaps in the input, uneven edges."""
    in_batch, in_feature, in_space, k_in, k_out, k_space, out_batch, out_feature, out_space = dims
    if batch_groups != 1:
        raise InvalidGraphError("the interpreter has no convolution with groups of batches")
    ordered = x.permute(in_batch, in_feature, *in_space)
    weight = kernel.permute(k_out, k_in, *k_space)
    weight = weight.flip([2 + i for i, turned in enumerate(reversal) if turned])
    gaps = [(length - 1) * d + 1 for length, d in zip(ordered.shape[2:], x_dilation, strict=True)]
    wide = ordered.new_zeros(*ordered.shape[:2], *gaps)
    places: list[slice] = [slice(None, None, d) for d in x_dilation]
    wide[:, :, *places] = ordered
    edges = [edge for low, high in reversed(padding) for edge in (low, high)]
    wide = functional.pad(wide, edges)
    space = len(strides)
    result = torch.convolution(
        *(wide, weight, None, list(strides), [0] * space, list(kernel_dilation)),
        *(False, [0] * space, feature_groups),
    )
    order = [out_batch, out_feature, *out_space]
    return result.permute([order.index(dim) for dim in range(result.dim())]).contiguous()


def conv2d(
    operands: Sequence[Tensor],
    groups: int,
    _auto_pad: str,
    layout: str,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Input, kernel and perhaps bias; padding is top, bottom, left, right."""
    x, kernel = operands[0], operands[1]
    bias = operands[2] if len(operands) > 2 else None
    if layout == "NHWC":
        x, kernel = x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1)
    top, bottom, left, right = padding
    result = functional.conv2d(
        functional.pad(x, [left, right, top, bottom]), kernel, bias, list(strides), 0, list(dilation), groups
    )
    return result.permute(0, 2, 3, 1).contiguous() if layout == "NHWC" else result.contiguous()


def max_pool2d(
    x: Tensor,
    size: Sequence[int],
    _ceil_mode: bool,
    _include_pad: bool,
    _auto_pad: str,
    layout: str,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    top, bottom, left, right = padding
    lowest = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    image = x.permute(0, 3, 1, 2) if layout == "NHWC" else x
    image = functional.pad(image, [left, right, top, bottom], value=lowest)
    result = functional.max_pool2d(image, list(size), list(strides), 0, list(dilation) or 1)
    return result.permute(0, 2, 3, 1).contiguous() if layout == "NHWC" else result.contiguous()


def average_pool(
    x: Tensor,
    dims: Sequence[int],
    size: Sequence[int],
    _ceil_mode: bool,
    include_pad: bool,
    strides: Sequence[int],
    padding: Sequence[int],
    _auto_pad: str,
) -> Tensor:
    """Over any two dimensions; without `include_pad` what was padded is not counted."""
    rest = [dim for dim in range(x.dim()) if dim not in dims]
    image = x.permute(*rest, *dims).float()
    flat = image.reshape(-1, 1, *image.shape[len(rest) :])
    top, bottom, left, right = padding
    windows = functional.pad(flat, [left, right, top, bottom]).unfold(2, size[0], strides[0])
    total = windows.unfold(3, size[1], strides[1]).sum((-2, -1))
    ones = torch.ones_like(flat[:1])
    counted = functional.pad(ones, [left, right, top, bottom], value=1.0 if include_pad else 0.0)
    count = counted.unfold(2, size[0], strides[0]).unfold(3, size[1], strides[1]).sum((-2, -1))
    result = (total / count).reshape(*image.shape[: len(rest)], *total.shape[2:])
    order = [*rest, *dims]
    return result.permute([order.index(dim) for dim in range(x.dim())]).contiguous().to(x.dtype)


def select_and_scatter(
    x: Tensor,
    source: Tensor,
    initial: Tensor,
    functions: Sequence[str],
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[Sequence[int]],
    _kind: Any,
) -> Tensor:
    """Each element of the source is added where the window's largest element is: the gradient of pooling by maximum."""
    if list(functions) != ["greater_equal", "add"] or list(sizes[:2]) != [1, 1] or initial.item() != 0:
        raise InvalidGraphError(
            "the interpreter knows SelectAndScatter as the gradient of a maximum over images"
        )
    (top, bottom), (left, right) = padding[2:]
    wide = functional.pad(x, [left, right, top, bottom], value=-torch.inf)
    _, places = functional.max_pool2d(wide, list(sizes[2:]), list(strides[2:]), return_indices=True)
    result = torch.zeros_like(wide).flatten(2).float()
    result = result.scatter_add(2, places.flatten(2), source.float().flatten(2)).reshape(wide.shape)
    return result[:, :, top : top + x.shape[2], left : left + x.shape[3]].contiguous().to(x.dtype)


def _by_channel(values: Tensor, x: Tensor, channel: int) -> Tensor:
    return values.float().reshape([-1 if dim == channel else 1 for dim in range(x.dim())])


def batch_norm_training(
    x: Tensor, scale: Tensor, bias: Tensor, epsilon: float, channel: int, _kind: Any
) -> list[Tensor]:
    rest = [dim for dim in range(x.dim()) if dim != channel]
    wide = x.float()
    variance, mean = torch.var_mean(wide, rest, correction=0)
    result = batch_norm_inference(x, scale, bias, mean, variance, epsilon, channel, _kind)
    return [result, mean.to(scale.dtype), variance.to(scale.dtype)]


def batch_norm_inference(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    epsilon: float,
    channel: int,
    _kind: Any,
) -> Tensor:
    scale, bias, mean, variance = (
        _by_channel(values, x, channel) for values in (scale, bias, mean, variance)
    )
    return ((x.float() - mean) * torch.rsqrt(variance + epsilon) * scale + bias).to(x.dtype)


def batch_norm_grad(
    x: Tensor,
    scale: Tensor,
    mean: Tensor,
    variance: Tensor,
    grad: Tensor,
    epsilon: float,
    channel: int,
    _kind: Any,
) -> list[Tensor]:
    """Of the training form, by the saved mean and biased variance."""
    rest = [dim for dim in range(x.dim()) if dim != channel]
    count = x.numel() // x.shape[channel]
    wide = grad.float()
    inverse = torch.rsqrt(_by_channel(variance, x, channel) + epsilon)
    normal = (x.float() - _by_channel(mean, x, channel)) * inverse
    bias_grad = wide.sum(rest, keepdim=True)
    scale_grad = (wide * normal).sum(rest, keepdim=True)
    result = (
        (wide - bias_grad / count - normal * scale_grad / count) * inverse * _by_channel(scale, x, channel)
    )
    return [
        result.to(x.dtype),
        scale_grad.flatten().to(scale.dtype),
        bias_grad.flatten().to(scale.dtype),
    ]


def layer_norm(x: Tensor, scale: Tensor, bias: Tensor, axis: int, epsilon: float, _kind: Any) -> list[Tensor]:
    """The result, and of each row the mean and the biased variance."""
    dims = list(range(axis, x.dim()))
    wide = x.float()
    variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    result = (wide - mean) * torch.rsqrt(variance + epsilon) * scale.float() + bias.float()
    rows = x.shape[:axis]
    return [result.to(x.dtype), mean.reshape(rows).to(x.dtype), variance.reshape(rows).to(x.dtype)]
