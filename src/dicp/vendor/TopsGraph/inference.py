"""Rules of the builder's operators for shapes and dtypes, each from the operator's definition.

A rule gets the operands (anything with a shape and a dtype) and the other arguments of a call, in the order of the builder's
function, and says the type of the result: a shape and a dtype, or a list of them for a tuple.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dicp.errors import InvalidGraphError

__all__ = ["ResultType"]

ResultType = tuple[tuple[int, ...], torch.dtype]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidGraphError(message)


def like_first(x: Any, *_rest: Any) -> ResultType:
    """The operand's own type: functions of one element."""
    return tuple(x.shape), x.dtype


def broadcast(x: Any, y: Any) -> ResultType:
    """Arithmetic: operands of one dtype, broadcast to each other."""
    _require(x.dtype == y.dtype, f"operands of {x.dtype} and {y.dtype}: expected one dtype")
    return tuple(torch.broadcast_shapes(x.shape, y.shape)), x.dtype


def comparison(x: Any, y: Any, *_direction: Any) -> ResultType:
    return broadcast(x, y)[0], torch.bool


def predicate(x: Any) -> ResultType:
    return tuple(x.shape), torch.bool


def select(condition: Any, x: Any, y: Any) -> ResultType:
    _require(condition.dtype == torch.bool, f"a condition of {condition.dtype}: expected bool")
    _require(
        condition.shape == x.shape == y.shape, "Select does not broadcast: expected operands of one shape"
    )
    return broadcast(x, y)


def clamp(low: Any, x: Any, high: Any) -> ResultType:
    _require(low.dtype == x.dtype == high.dtype, "limits of another dtype than the operand")
    return like_first(x)


def declared(
    *operands: Any, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None
) -> ResultType:
    """The type is an argument of the call."""
    first: Any = operands[0] if operands else None
    return tuple(first.shape if shape is None else shape), first.dtype if dtype is None else dtype


def reshape(x: Any, *, shape: Sequence[int]) -> ResultType:
    _require(math.prod(shape) == math.prod(x.shape), f"cannot reshape {list(x.shape)} to {list(shape)}")
    return tuple(shape), x.dtype


def broadcast_in_dim(x: Any, dims: Sequence[int], *, shape: Sequence[int]) -> ResultType:
    _require(len(dims) == len(x.shape), f"{len(dims)} broadcast dimensions for {len(x.shape)}")
    for dim, length in zip(dims, x.shape, strict=True):
        _require(
            length in (1, shape[dim]), f"cannot broadcast {list(x.shape)} to {list(shape)} at {list(dims)}"
        )
    return tuple(shape), x.dtype


def reversed_(x: Any, dims: Sequence[int], *, shape: Sequence[int], dtype: torch.dtype) -> ResultType:
    _require(tuple(shape) == tuple(x.shape) and dtype == x.dtype, "reversed elements of another type")
    _require(len(set(dims)) == len(dims), f"a dimension is reversed twice: {list(dims)}")
    return tuple(shape), dtype


def transpose(x: Any, permutation: Sequence[int]) -> ResultType:
    _require(sorted(permutation) == list(range(len(x.shape))), f"{list(permutation)} is no permutation")
    return tuple(x.shape[dim] for dim in permutation), x.dtype


def slice_(x: Any, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> ResultType:
    for start, limit, length in zip(starts, limits, x.shape, strict=True):
        _require(0 <= start <= limit <= length, f"slice {start}:{limit} of {length}")
    sizes = zip(starts, limits, strides, strict=True)
    return tuple(-(-(limit - start) // stride) for start, limit, stride in sizes), x.dtype


def concatenate(operands: Sequence[Any], dim: int) -> ResultType:
    first = operands[0]
    for other in operands:
        _require(other.dtype == first.dtype, "concatenated operands of different dtypes")
        same = all(a == b for i, (a, b) in enumerate(zip(other.shape, first.shape, strict=True)) if i != dim)
        _require(same, "concatenated operands differ in another dimension")
    total = sum(operand.shape[dim] for operand in operands)
    return (*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype


def pad(
    x: Any, value: Any, _mode: int, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> ResultType:
    _require(value.dtype == x.dtype and not value.shape, "a padding value of another dtype, or not a scalar")
    edges = zip(x.shape, low, high, interior, strict=True)
    return tuple(n + a + b + max(n - 1, 0) * c for n, a, b, c in edges), x.dtype


def reduce(x: Any, keepdims: bool, axes: Sequence[int]) -> ResultType:
    """Without axes all dimensions are reduced."""
    reduced = set(axes) or set(range(len(x.shape)))
    shape = ((dim, length) for dim, length in enumerate(x.shape))
    if keepdims:
        return tuple(1 if dim in reduced else length for dim, length in shape), x.dtype
    return tuple(length for dim, length in shape if dim not in reduced), x.dtype


def index_of_extreme(x: Any, axis: int, keepdims: bool) -> ResultType:
    return reduce(x, keepdims, [axis])[0], torch.int64


def dot(x: Any, y: Any) -> ResultType:
    _require(x.dtype == y.dtype and x.shape[-1] == y.shape[0], f"no product of {x.shape} and {y.shape}")
    return (x.shape[0], y.shape[1]), x.dtype


def dot_general(x: Any, y: Any, dims: Sequence[Sequence[int]]) -> ResultType:
    """Batch dimensions come first, then what is left of each operand."""
    x_batch, y_batch, x_contract, y_contract = (list(part) for part in dims)
    for a, b in zip([*x_batch, *x_contract], [*y_batch, *y_contract], strict=True):
        _require(x.shape[a] == y.shape[b], f"no product of {x.shape} and {y.shape} by {dims}")
    _require(x.dtype == y.dtype, f"a product of {x.dtype} and {y.dtype}")
    x_free = [n for i, n in enumerate(x.shape) if i not in (*x_batch, *x_contract)]
    y_free = [n for i, n in enumerate(y.shape) if i not in (*y_batch, *y_contract)]
    return (*(x.shape[i] for i in x_batch), *x_free, *y_free), x.dtype


def window(length: int, size: int, stride: int, padding: Sequence[int], dilation: int) -> int:
    """How many windows of a size fit."""
    return (length + padding[0] + padding[1] - (dilation * (size - 1) + 1)) // stride + 1


def convolution(
    x: Any,
    kernel: Any,
    dims: Sequence[Any],
    strides: Sequence[int],
    padding: Sequence[Sequence[int]],
    x_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
    _reversal: Sequence[bool],
    _auto_pad: str,
    feature_groups: int,
    batch_groups: int,
    _precision: Sequence[str],
) -> ResultType:
    """The general convolution; `dims` are the numbers of batch, feature and spatial dimensions of input, kernel and output."""
    in_batch, in_feature, in_space, k_in, k_out, k_space, out_batch, out_feature, out_space = dims
    _require(
        x.shape[in_feature] == kernel.shape[k_in] * feature_groups, "channels of input and kernel differ"
    )
    shape = [0] * len(x.shape)
    shape[out_batch] = x.shape[in_batch] // batch_groups
    shape[out_feature] = kernel.shape[k_out]
    for i, out in enumerate(out_space):
        length = (x.shape[in_space[i]] - 1) * x_dilation[i] + 1
        size = kernel.shape[k_space[i]]
        shape[out] = window(length, size, strides[i], padding[i], kernel_dilation[i])
    return tuple(shape), x.dtype


def conv2d(
    operands: Sequence[Any],
    groups: int,
    _auto_pad: str,
    layout: str,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> ResultType:
    """Input, kernel and perhaps bias. NCHW has kernels [O, I, H, W], NHWC has [H, W, I, O]."""
    x, kernel = operands[0], operands[1]
    first = layout == "NCHW"
    channels, out = (x.shape[1], kernel.shape[0]) if first else (x.shape[3], kernel.shape[3])
    _require(
        channels == (kernel.shape[1] if first else kernel.shape[2]) * groups,
        "channels of input and kernel differ",
    )
    space, sizes = (x.shape[2:], kernel.shape[2:]) if first else (x.shape[1:3], kernel.shape[:2])
    height, width = (
        window(space[i], sizes[i], strides[i], padding[2 * i : 2 * i + 2], dilation[i]) for i in range(2)
    )
    return ((x.shape[0], out, height, width) if first else (x.shape[0], height, width, out)), x.dtype


def max_pool2d(
    x: Any,
    size: Sequence[int],
    ceil_mode: bool,
    _include_pad: bool,
    _auto_pad: str,
    layout: str,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> ResultType:
    _require(not ceil_mode, "pooling rounds down here: pad the operand instead")
    first = 2 if layout == "NCHW" else 1
    shape = list(x.shape)
    for i in range(2):
        shape[first + i] = window(
            x.shape[first + i],
            size[i],
            strides[i],
            padding[2 * i : 2 * i + 2],
            dilation[i] if dilation else 1,
        )
    return tuple(shape), x.dtype


def average_pool(
    x: Any,
    dims: Sequence[int],
    size: Sequence[int],
    ceil_mode: bool,
    _include_pad: bool,
    strides: Sequence[int],
    padding: Sequence[int],
    _auto_pad: str,
) -> ResultType:
    _require(not ceil_mode, "pooling rounds down here: pad the operand instead")
    shape = list(x.shape)
    for i, dim in enumerate(dims):
        shape[dim] = window(x.shape[dim], size[i], strides[i], padding[2 * i : 2 * i + 2], 1)
    return tuple(shape), x.dtype


def gather(x: Any, indices: Any, dims: Sequence[Any], sizes: Sequence[int], _sorted: bool) -> ResultType:
    """Windows of `sizes` that start at the indices; collapsed dimensions have size 1 and are left out."""
    offsets, collapsed, _start_map, vector = dims
    batch = [n for i, n in enumerate(indices.shape) if i != vector]
    kept = iter([n for i, n in enumerate(sizes) if i not in collapsed])
    rank = len(batch) + len(offsets)
    batches = iter(batch)
    return tuple(next(kept) if i in offsets else next(batches) for i in range(rank)), x.dtype


def batch_norm_training(x: Any, scale: Any, bias: Any, _epsilon: float, channel: int) -> list[ResultType]:
    """The result, the mean and the biased variance of each channel."""
    _require(
        tuple(scale.shape) == tuple(bias.shape) == (x.shape[channel],),
        "a scale that does not fit the channels",
    )
    return [like_first(x), like_first(scale), like_first(scale)]


def batch_norm_grad(
    x: Any, scale: Any, _mean: Any, _variance: Any, grad: Any, _epsilon: float, channel: int
) -> list[ResultType]:
    """Gradients of operand, scale and bias."""
    _require(
        grad.shape == x.shape and scale.shape[0] == x.shape[channel],
        "a gradient that does not fit the operand",
    )
    return [like_first(x), like_first(scale), like_first(scale)]


def layer_norm(x: Any, _scale: Any, _bias: Any, axis: int, _epsilon: float) -> list[ResultType]:
    """The result, the mean and the variance of each row."""
    rows = tuple(x.shape[:axis])
    return [like_first(x), (rows, x.dtype), (rows, x.dtype)]


def top_k(x: Any, _k: Any, axis: int, _sorted: bool, _largest: bool, *, count: int) -> list[ResultType]:
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return [(shape, x.dtype), (shape, torch.int64)]


def element(values: Sequence[Any], index: int) -> ResultType:
    return like_first(values[index])
