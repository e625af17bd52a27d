"""Operators of the corpus that autograd calls: backward overloads of ATen, written out by hand."""

from __future__ import annotations

import math
from typing import Any

import torch

from verdict_arithmetic import How
from verdict_subjects import SUMS, Draw, subject

Tensor = torch.Tensor
aten = torch.ops.aten
N = (37, 113)


def _pair(d: Draw) -> tuple[Tensor, Tensor]:
    return d.weight(*N), d.data(*N)


@subject("gelu_backward", aten.gelu_backward.default, _pair)
def gelu_backward(how: How, grad: Tensor, x: Tensor) -> Tensor:
    tail = (
        0.5 * torch.erfc(-x * math.sqrt(0.5)) if how.backwards else 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    )
    return grad * (tail + x * (-0.5 * x * x).exp() * (0.5 * math.sqrt(2 / math.pi)))


@subject("silu_backward", aten.silu_backward.default, _pair)
def silu_backward(how: How, grad: Tensor, x: Tensor) -> Tensor:
    gate = 0.5 * (1 + torch.tanh(0.5 * x)) if how.backwards else torch.sigmoid(x)
    return grad * gate * (1 + x * (1 - gate))


@subject("tanh_backward", aten.tanh_backward.default, lambda d: (d.weight(*N), d.data(*N).tanh()))
def tanh_backward(how: How, grad: Tensor, y: Tensor) -> Tensor:
    return grad - grad * y * y if how.backwards else grad * (1 - y * y)


@subject("sigmoid_backward", aten.sigmoid_backward.default, lambda d: (d.weight(*N), d.data(*N).sigmoid()))
def sigmoid_backward(how: How, grad: Tensor, y: Tensor) -> Tensor:
    return grad * y * (1 - y)


@subject("threshold_backward", aten.threshold_backward.default, lambda d: (*_pair(d), 0.0))
def threshold_backward(how: How, grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    return grad * (x > threshold)


def _elu_inputs(d: Draw) -> tuple[Any, ...]:
    return d.weight(*N), 1.0, 1.0, 1.0, False, d.data(*N)


@subject("elu_backward", aten.elu_backward.default, _elu_inputs)
def elu_backward(
    how: How, grad: Tensor, alpha: float, scale: float, inner: float, is_result: bool, x: Tensor
) -> Tensor:
    return torch.where(x > 0, grad, grad * x.clamp(max=0).exp())


@subject("hardswish_backward", aten.hardswish_backward.default, _pair)
def hardswish_backward(how: How, grad: Tensor, x: Tensor) -> Tensor:
    inside = (x > -3) & (x < 3)
    return torch.where(inside, grad * (x / 3 + 0.5), grad * (x >= 3))


@subject("softplus_backward", aten.softplus_backward.default, lambda d: (*_pair(d), 1.0, 20.0))
def softplus_backward(how: How, grad: Tensor, x: Tensor, *rest: Any) -> Tensor:
    e = x.clamp(max=20).exp()
    return torch.where(x > 20, grad, grad * e / (e + 1))


@subject(
    "_softmax_backward_data",
    aten._softmax_backward_data.default,
    lambda d: (d.weight(40, 300), d.data(40, 300).softmax(1), 1, d.dtype),
    *SUMS,
)
def softmax_backward(how: How, grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    total = how.sum(grad * y, 1, True)
    return grad * y - total * y if how.backwards else (grad - total) * y


@subject(
    "_log_softmax_backward_data",
    aten._log_softmax_backward_data.default,
    lambda d: (d.weight(40, 300), d.data(40, 300).log_softmax(1), 1, d.dtype),
    *SUMS,
)
def log_softmax_backward(how: How, grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return grad - y.exp() * how.sum(grad, 1, True)


def _layer_norm_inputs(d: Draw) -> tuple[Any, ...]:
    x, weight, bias = d.data(48, 256), d.gain(256), d.weight(256)
    _, mean, inverse = torch.native_layer_norm(x, (256,), weight, bias, 1e-5)
    return d.weight(48, 256), x, [256], mean, inverse, weight, bias, [True, True, True]


@subject(
    "native_layer_norm_backward",
    aten.native_layer_norm_backward.default,
    _layer_norm_inputs,
    *SUMS,
    "counts one too few",
    "two roundings",
)
def layer_norm_backward(
    how: How, grad: Tensor, x: Tensor, shape: Any, mean: Tensor, inverse: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    normal = how.inner((x - mean) * inverse)
    scaled = grad * weight
    rest_of = how.mean(scaled, 1, True) + normal * how.mean(scaled * normal, 1, True)
    return inverse * (scaled - rest_of), how.sum(grad * normal, 0), how.sum(grad, 0)


def _batch_norm_inputs(d: Draw) -> tuple[Any, ...]:
    x, weight = d.data(6, 8, 7, 7), d.gain(8)
    _, mean, inverse = torch.native_batch_norm(x, weight, d.weight(8), None, None, True, 0.1, 1e-5)
    grad = torch.randn(6, 8, 7, 7, generator=d.generator).to(x.dtype)
    return grad, x, weight, None, None, mean, inverse, True, 1e-5, [True, True, True]


@subject(
    "native_batch_norm_backward",
    aten.native_batch_norm_backward.default,
    _batch_norm_inputs,
    *SUMS,
    "counts one too few",
    "two roundings",
)
def batch_norm_backward(
    how: How,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    _m: Any,
    _v: Any,
    mean: Tensor,
    inverse: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, grads = (value.transpose(0, 1).reshape(8, -1) for value in (x, grad))
    normal = how.inner((rows - mean.view(8, 1)) * inverse.view(8, 1))
    to_bias, to_weight = how.sum(grads, 1), how.sum(grads * normal, 1)
    count = 294 - (how.fault == "counts one too few")
    inner = grads - to_bias.view(8, 1) / count - normal * to_weight.view(8, 1) / count
    to_input = inner * (inverse * weight).view(8, 1)
    return to_input.view(8, 6, 7, 7).transpose(0, 1), to_weight, to_bias


def _group_norm_inputs(d: Draw) -> tuple[Any, ...]:
    x, weight = d.data(4, 16, 32), d.gain(16)
    _, mean, inverse = torch.native_group_norm(x, weight, d.weight(16), 4, 16, 32, 4, 1e-5)
    grad = torch.randn(4, 16, 32, generator=d.generator).to(x.dtype)
    return grad, x, mean, inverse, weight, 4, 16, 32, 4, [True, True, True]


@subject(
    "native_group_norm_backward",
    aten.native_group_norm_backward.default,
    _group_norm_inputs,
    *SUMS,
    "counts one too few",
    "two roundings",
)
def group_norm_backward(
    how: How, grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    normal = how.inner((x.view(4, 4, 128) - mean.unsqueeze(2)) * inverse.unsqueeze(2))
    scaled = (grad * weight.view(1, 16, 1)).view(4, 4, 128)
    inner = scaled - how.mean(scaled, 2, True) - normal * how.mean(scaled * normal, 2, True)
    products = (grad * normal.view(4, 16, 32)).transpose(0, 1).reshape(16, -1)
    to_bias = how.sum(grad.transpose(0, 1).reshape(16, -1), 1)
    return (inner * inverse.unsqueeze(2)).view(4, 16, 32), how.sum(products, 1), to_bias


@subject(
    "convolution_backward",
    aten.convolution_backward.default,
    lambda d: (
        d.weight(2, 8, 10, 10),
        d.data(2, 6, 12, 12),
        d.weight(8, 6, 3, 3),
        [8],
        [1, 1],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
        [True, True, True],
    ),
    *SUMS,
)
def convolution_backward(
    how: How, grad: Tensor, x: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    grads, columns = grad.flatten(2), torch.nn.functional.unfold(x, 3)
    to_input = torch.nn.functional.fold(how.matmul(weight.flatten(1).t(), grads), (12, 12), 3)
    flat = grads.transpose(0, 1).reshape(8, -1), columns.transpose(1, 2).reshape(-1, 54)
    return to_input, how.matmul(*flat).view(8, 6, 3, 3), how.sum(flat[0], 1)


@subject(
    "embedding_dense_backward",
    aten.embedding_dense_backward.default,
    lambda d: (d.data(128, 48), d.index(32, 128), 32, -1, False),
    "duplicates overwrite",
)
def embedding_dense_backward(how: How, grad: Tensor, index: Tensor, *rest: Any) -> Tensor:
    return how.add_at(torch.zeros(32, 48), index, grad)


@subject(
    "mse_loss_backward",
    aten.mse_loss_backward.default,
    lambda d: (d.gain(1).view(()), d.data(1500), d.data(1500), 1),
)
def mse_loss_backward(how: How, grad: Tensor, a: Tensor, b: Tensor, reduction: int) -> Tensor:
    return (a - b) * (2 / 1500 * grad) if how.backwards else 2 * (a - b) * grad / 1500


@subject(
    "avg_pool2d_backward",
    aten.avg_pool2d_backward.default,
    lambda d: (d.data(2, 5, 4, 4), d.data(2, 5, 16, 16), [4, 4], [4, 4], [0, 0], False, True, None),
)
def avg_pool2d_backward(how: How, grad: Tensor, *rest: Any) -> Tensor:
    return (grad / 16).repeat_interleave(4, 2).repeat_interleave(4, 3)


@subject(
    "upsample_bilinear2d_backward",
    aten.upsample_bilinear2d_backward.default,
    lambda d: (d.data(2, 4, 12, 12), [12, 12], [2, 4, 6, 6], False, 2.0, 2.0),
)
def upsample_backward(how: How, grad: Tensor, *rest: Any) -> Tensor:
    def along(grad: Tensor, dim: int) -> Tensor:
        odd, even = grad.unflatten(dim, (6, 2)).unbind(dim + 1)
        below, above = odd.roll(-1, dim), even.roll(1, dim)
        last, first = below.narrow(dim, 5, 1), above.narrow(dim, 0, 1)
        last.copy_(even.narrow(dim, 5, 1))
        first.copy_(odd.narrow(dim, 0, 1))
        return 0.75 * (odd + even) + 0.25 * (below + above)

    return along(along(grad, 3), 2) if how.backwards else along(along(grad, 2), 3)


@subject("glu_backward", aten.glu_backward.default, lambda d: (d.weight(37, 50), d.data(37, 100), 1))
def glu_backward(how: How, grad: Tensor, x: Tensor, dim: int) -> Tensor:
    a, b = x.chunk(2, 1)
    gate = torch.sigmoid(b)
    return torch.cat((grad * gate, grad * a * gate * (1 - gate)), 1)
