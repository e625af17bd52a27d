"""What each operator of the builder computes, in terms of PyTorch: arguments as in the program, types included."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dicp.vendor.TopsGraph.codegen import definitions_layers as layers
from dicp.vendor.TopsGraph.codegen import definitions_places as places

__all__ = ["DEFINITIONS"]


def _divide(x: Tensor, y: Tensor) -> Tensor:
    """Whole numbers are divided towards zero."""
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _not(x: Tensor) -> Tensor:
    return ~x


_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}


def _compare(x: Tensor, y: Tensor, direction: str) -> Any:
    return _COMPARISONS[direction](x, y)


def _clamp(low: Tensor, x: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, low), high)


def _gelu(x: Tensor, approximate: bool) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh" if approximate else "none")


def _gelu_grad(grad: Tensor, x: Tensor, approximate: bool) -> Tensor:
    return torch.ops.aten.gelu_backward(grad, x, approximate="tanh" if approximate else "none")


def _relu_grad(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x > 0, grad, torch.zeros_like(grad))


def _hard_swish_grad(grad: Tensor, x: Tensor, alpha: float, beta: float, limit: float) -> Tensor:
    """Of x * clamp(alpha * x + beta, 0, 1), where the clamp ends at -limit and limit."""
    inside = grad.float() * (2 * alpha * x.float() + beta)
    return torch.where(
        x <= -limit, torch.zeros_like(inside), torch.where(x < limit, inside, grad.float())
    ).to(grad.dtype)


def _softmax(x: Tensor, dim: int, _accurate: bool, logarithm: bool, _epsilon: float) -> Tensor:
    return torch.log_softmax(x, dim) if logarithm else torch.softmax(x, dim)


def _convert(x: Tensor, kind: Any) -> Tensor:
    return x.to(kind.dtype)


def _reshape(x: Tensor, kind: Any) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format).reshape(kind.shape)


def _broadcast(x: Tensor, dims: Sequence[int], kind: Any) -> Tensor:
    shape = [1] * len(kind.shape)
    for dim, length in zip(dims, x.shape, strict=True):
        shape[dim] = length
    return x.reshape(shape).expand(kind.shape).contiguous()


def _slice(x: Tensor, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Tensor:
    return x[tuple(map(slice, starts, limits, strides))].contiguous()


def _reduction(function: Callable[..., Tensor]) -> Callable[[Tensor, bool, Sequence[int]], Tensor]:
    def reduce(x: Tensor, keepdims: bool, axes: Sequence[int]) -> Tensor:
        return function(x, dim=tuple(axes) or tuple(range(x.dim())), keepdim=keepdims).to(x.dtype)

    return reduce


def _product(x: Tensor, *, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    for axis in sorted(dim, reverse=True):
        wide = wide.prod(axis, keepdim=keepdim)
    return wide


def _cumulative_sum(x: Tensor, axis: Tensor, exclusive: bool, reverse: bool) -> Tensor:
    dim = int(axis)
    turned = x.flip(dim) if reverse else x
    total = torch.cumsum(turned, dim, dtype=x.dtype)
    total = total - turned if exclusive else total
    return total.flip(dim) if reverse else total


def _top_k(x: Tensor, k: Tensor, axis: int, ordered: bool, largest: bool) -> list[Tensor]:
    return list(torch.topk(x, int(k), axis, largest, ordered))


def _dot_general(x: Tensor, y: Tensor, dims: Sequence[Sequence[int]]) -> Tensor:
    """By einsum: one letter for each batch, contracted and free dimension."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    x_batch, y_batch, x_contract, y_contract = dims
    left, right = [""] * x.dim(), [""] * y.dim()
    for one, other in zip([*x_batch, *x_contract], [*y_batch, *y_contract], strict=True):
        left[one] = right[other] = next(letters)
    batch = "".join(left[dim] for dim in x_batch)
    left_free = [dim for dim, letter in enumerate(left) if not letter]
    right_free = [dim for dim, letter in enumerate(right) if not letter]
    for part, free in ((left, left_free), (right, right_free)):
        for dim in free:
            part[dim] = next(letters)
    result = batch + "".join(left[dim] for dim in left_free) + "".join(right[dim] for dim in right_free)
    return torch.einsum(f"{''.join(left)},{''.join(right)}->{result}", x, y).contiguous()


def _iota(axis: int, kind: Any) -> Tensor:
    shape = [1] * len(kind.shape)
    shape[axis] = kind.shape[axis]
    return torch.arange(kind.shape[axis]).to(kind.dtype).reshape(shape).expand(kind.shape).contiguous()


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Neg": torch.neg,
    "Exp": torch.exp,
    "Log": torch.log,
    "Sqrt": torch.sqrt,
    "Rsqrt": torch.rsqrt,
    "Reciprocal": torch.reciprocal,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Relu": torch.relu,
    "Erf": torch.erf,
    "Floor": torch.floor,
    "Sign": torch.sgn,
    "Square": torch.square,
    "Swish": torch.nn.functional.silu,
    "HardSwish": torch.nn.functional.hardswish,
    "Atan": torch.atan,
    "Not": _not,
    "IsFinite": torch.isfinite,
    "ZerosLike": torch.zeros_like,
    "OnesLike": torch.ones_like,
}
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": _divide,
    "Pow": torch.pow,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "And": torch.bitwise_and,
    "Or": torch.bitwise_or,
    "Equal": torch.eq,
    "NotEqual": torch.ne,
    "Less": torch.lt,
    "LessEqual": torch.le,
    "Greater": torch.gt,
    "GreaterEqual": torch.ge,
    "ReluGrad": _relu_grad,
    "Dot": torch.matmul,
}
DEFINITIONS: dict[str, Callable[..., Any]] = {
    **_UNARY,
    **_BINARY,
    "Compare": _compare,
    "Select": torch.where,
    "Clamp": _clamp,
    "Gelu": _gelu,
    "GeluGrad": _gelu_grad,
    "LeakyRelu": torch.nn.functional.leaky_relu,
    "HardSwishGrad": _hard_swish_grad,
    "Softmax": _softmax,
    "Convert": _convert,
    "Reshape": _reshape,
    "BroadcastInDim": _broadcast,
    "Transpose": lambda x, permutation: x.permute(permutation).contiguous(),
    "Reverse": lambda x, dims, _kind: x.flip(dims),
    "Slice": _slice,
    "Concatenate": torch.cat,
    "Pad": places.pad,
    "ReduceSum": _reduction(torch.sum),
    "ReduceMean": _reduction(torch.mean),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMin": _reduction(torch.amin),
    "ReduceProd": _reduction(_product),
    "ArgMax": torch.argmax,
    "ArgMin": torch.argmin,
    "CumSum": _cumulative_sum,
    "TopK": _top_k,
    "DotGeneral": _dot_general,
    "Conv": layers.convolution,
    "Conv2D": layers.conv2d,
    "MaxPool2D": layers.max_pool2d,
    "AveragePool": layers.average_pool,
    "SelectAndScatter": layers.select_and_scatter,
    "Gather": places.gather,
    "Scatter": places.scatter,
    "BatchNormTraining": layers.batch_norm_training,
    "BatchNormInference": layers.batch_norm_inference,
    "BatchNormGrad": layers.batch_norm_grad,
    "LayerNorm": layers.layer_norm,
    "GetTupleElement": lambda values, index: values[index],
    "Iota": _iota,
}
"""By the name of the builder's function."""
