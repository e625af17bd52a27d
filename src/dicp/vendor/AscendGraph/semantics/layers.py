"""Convolutions, pooling, gradients of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dicp.errors import InvalidGraphError
from dicp.vendor.AscendGraph.operators import computes, require_one_dtype

Sizes = Sequence[int]
aten = torch.ops.aten


def _places(
    strides: Sizes, pads: Sizes, dilations: Sizes, data_format: str
) -> tuple[list[int], list[int], list[int]]:
    """Strides, padding and dilation of rows and columns."""
    above, below, left, right = pads
    if data_format != "NCHW" or above != below or left != right:
        raise InvalidGraphError(
            f"a convolution of {data_format} with pads {list(pads)}: expected NCHW and even ones"
        )
    return list(strides[2:]), [above, left], list(dilations[2:])


@computes("Conv2D")
def conv2d(
    x: Tensor,
    filter: Tensor,
    bias: Tensor | None = None,
    offset_w: Tensor | None = None,
    *,
    strides: Sizes,
    pads: Sizes,
    dilations: Sizes = (1, 1, 1, 1),
    groups: int = 1,
    data_format: str = "NHWC",
    offset_x: int = 0,
) -> Tensor:
    require_one_dtype("Conv2D", x, filter, bias)
    steps, edges, gaps = _places(strides, pads, dilations, data_format)
    return functional.conv2d(x, filter, bias, steps, edges, gaps, groups).contiguous()


def _gradient(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    places: tuple[list[int], list[int], list[int]],
    groups: int,
    which: int,
) -> Any:
    steps, edges, gaps = places
    mask = [which == 0, which == 1, False]
    found = aten.convolution_backward(grad, x, weight, None, steps, edges, gaps, False, [0, 0], groups, mask)
    return found[which].contiguous()


@computes("Conv2DBackpropInput", integers=("input_size",))
def conv2d_input_gradient(
    input_size: Sizes,
    filter: Tensor,
    out_backprop: Tensor,
    *,
    strides: Sizes,
    pads: Sizes,
    dilations: Sizes = (1, 1, 1, 1),
    groups: int = 1,
    data_format: str = "NHWC",
) -> Tensor:
    require_one_dtype("Conv2DBackpropInput", filter, out_backprop)
    x = out_backprop.new_empty(tuple(input_size))
    places = _places(strides, pads, dilations, data_format)
    found: Tensor = _gradient(out_backprop, x, filter, places, groups, 0)
    return found


@computes("Conv2DBackpropFilter", integers=("filter_size",))
def conv2d_filter_gradient(
    x: Tensor,
    filter_size: Sizes,
    out_backprop: Tensor,
    *,
    strides: Sizes,
    pads: Sizes,
    dilations: Sizes = (1, 1, 1, 1),
    groups: int = 1,
    data_format: str = "NHWC",
) -> Tensor:
    require_one_dtype("Conv2DBackpropFilter", x, out_backprop)
    weight = x.new_empty(tuple(filter_size))
    places = _places(strides, pads, dilations, data_format)
    found: Tensor = _gradient(out_backprop, x, weight, places, groups, 1)
    return found


def _pooling(
    name: str, ksize: Sizes, strides: Sizes, pads: Sizes, data_format: str, padding_mode: str, whole: bool
) -> tuple[list[int], list[int], list[int]]:
    above, below, left, right = pads
    even = above == below and left == right
    if data_format != "NCHW" or padding_mode != "CALCULATED" or whole or not even:
        raise InvalidGraphError(f"{name}: expected NCHW, calculated and even pads, windows of a size")
    return list(ksize[2:]), list(strides[2:]), [above, left]


@computes("AvgPoolV2")
def average_pool(
    x: Tensor,
    *,
    ksize: Sizes,
    strides: Sizes,
    padding_mode: str = "CALCULATED",
    pads: Sizes = (0, 0, 0, 0),
    data_format: str = "NCHW",
    global_pooling: bool = False,
    ceil_mode: bool = False,
    exclusive: bool = True,
    divisor_override: int = 0,
) -> Tensor:
    """Without `exclusive` padding counts as elements; the divisor 0 is the number of elements."""
    size, steps, edges = _pooling(
        "AvgPoolV2", ksize, strides, pads, data_format, padding_mode, global_pooling
    )
    result = functional.avg_pool2d(x, size, steps, edges, ceil_mode, not exclusive, divisor_override or None)
    return result.contiguous()


@computes("MaxPoolV3")
def max_pool(
    x: Tensor,
    *,
    ksize: Sizes,
    strides: Sizes,
    padding_mode: str = "CALCULATED",
    pads: Sizes = (0, 0, 0, 0),
    data_format: str = "NCHW",
    global_pooling: bool = False,
    ceil_mode: bool = False,
) -> Tensor:
    size, steps, edges = _pooling(
        "MaxPoolV3", ksize, strides, pads, data_format, padding_mode, global_pooling
    )
    return functional.max_pool2d(x, size, steps, edges, 1, ceil_mode).contiguous()


@computes("EmbeddingDenseGrad")
def embedding_gradient(
    grad: Tensor,
    indices: Tensor,
    *,
    num_weights: int,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    return aten.embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq)
