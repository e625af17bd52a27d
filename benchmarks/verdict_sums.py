"""Operators of the corpus that add up: reductions, products of matrices, normalisations, losses, attention."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from verdict_arithmetic import How
from verdict_subjects import NORMS, PRODUCTS, SUBJECTS, SUMS, Subject, subject

Tensor = torch.Tensor


# Reductions


@subject("sum", torch.sum, lambda d: (d.data(200, 331),), *SUMS, dim=1)
def total(how: How, x: Tensor) -> Tensor:
    return how.sum(x, 1)


@subject("mean", torch.mean, lambda d: (d.data(331, 200),), *SUMS, "counts one too few", dim=0)
def mean(how: How, x: Tensor) -> Tensor:
    return how.mean(x, 0)


@subject(
    "var", torch.var, lambda d: (d.data(200, 331),), *SUMS, "counts one too few", "biased variance", dim=1
)
def var(how: How, x: Tensor) -> Tensor:
    return how.variance(x, 1, correction=1)


@subject("vector_norm", torch.linalg.vector_norm, lambda d: (d.data(200, 331),), *SUMS, dim=1)
def vector_norm(how: How, x: Tensor) -> Tensor:
    return how.sum(x * x, 1).sqrt()


@subject("logsumexp", torch.logsumexp, lambda d: (d.data(200, 331),), *SUMS, "no maximum", dim=1)
def logsumexp(how: How, x: Tensor) -> Tensor:
    _, total, top = how.exponentials(x, 1)
    return (total.log() + top).squeeze(1)


@subject("cumsum", torch.cumsum, lambda d: (d.data(24, 1000),), "restarts at a block", "half sums", dim=1)
def cumsum(how: How, x: Tensor) -> Tensor:
    return how.cumsum(x, 1)


@subject(
    "avg_pool2d", functional.avg_pool2d, lambda d: (d.data(2, 5, 32, 32),), "dropped last term", kernel_size=4
)
def avg_pool2d(how: How, x: Tensor) -> Tensor:
    windows = functional.unfold(x.flatten(0, 1).unsqueeze(1), 4, stride=4)
    return how.sum(windows, 1).div(16).view(2, 5, 8, 8)


# Products of matrices


@subject("mm", torch.mm, lambda d: (d.data(48, 700), d.data(700, 40)), *PRODUCTS, grads=(0, 1))
def mm(how: How, a: Tensor, b: Tensor) -> Tensor:
    return how.matmul(a, b)


@subject("long mm", torch.mm, lambda d: (d.data(24, 3000), d.data(3000, 20)), *PRODUCTS)
def long_mm(how: How, a: Tensor, b: Tensor) -> Tensor:
    return how.matmul(a, b)


@subject("bmm", torch.bmm, lambda d: (d.data(6, 30, 128), d.data(6, 128, 24)), *PRODUCTS)
def bmm(how: How, a: Tensor, b: Tensor) -> Tensor:
    return how.matmul(a, b)


@subject(
    "addmm",
    torch.addmm,
    lambda d: (d.weight(40), d.data(48, 300), d.data(300, 40)),
    *PRODUCTS,
    "forgotten bias",
    "two roundings",
)
def addmm(how: How, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return how.inner(how.matmul(a, b)) + how.bias(c)


@subject(
    "linear",
    functional.linear,
    lambda d: (d.data(64, 512), d.weight(96, 512), d.weight(96)),
    *PRODUCTS,
    "forgotten bias",
    grads=(0, 1, 2),
)
def linear(how: How, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return how.matmul(x, weight.t()) + how.bias(bias)


@subject(
    "conv2d",
    functional.conv2d,
    lambda d: (d.data(2, 16, 12, 12), d.weight(8, 16, 3, 3), d.weight(8)),
    *PRODUCTS,
    "forgotten bias",
    grads=(0, 1, 2),
    padding=1,
)
def conv2d(how: How, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    columns = functional.unfold(x, 3, padding=1)
    return (how.matmul(weight.flatten(1), columns) + how.bias(bias).view(-1, 1)).view(2, 8, 12, 12)


@subject(
    "einsum",
    torch.einsum,
    lambda d: ("bik,bjk->bij", d.data(4, 24, 200), d.data(4, 20, 200)),
)
def einsum(how: How, equation: str, a: Tensor, b: Tensor) -> Tensor:
    return how.matmul(a, b.transpose(1, 2))


# Normalisation


@subject(
    "layer_norm",
    functional.layer_norm,
    lambda d: (d.data(48, 256), (256,), d.gain(256), d.weight(256)),
    *NORMS,
    "forgotten bias",
    grads=(0, 1, 2),
)
def layer_norm(how: How, x: Tensor, shape: tuple[int], weight: Tensor, bias: Tensor) -> Tensor:
    normal = (x - how.mean(x, 1, True)) * how.inverse_root(how.variance(x, 1, True), 1e-5)
    return how.inner(normal) * weight + how.bias(bias)


@subject(
    "rms_norm",
    functional.rms_norm,
    lambda d: (d.data(48, 256), (256,), d.gain(256), 1e-5),
    *NORMS,
    grads=(0, 1),
)
def rms_norm(how: How, x: Tensor, shape: tuple[int], weight: Tensor, eps: float) -> Tensor:
    return how.inner(x * how.inverse_root(how.mean(x * x, 1, True), 1e-5)) * weight


@subject(
    "batch_norm",
    functional.batch_norm,
    lambda d: (d.data(300, 24), None, None, d.gain(24), d.weight(24)),
    *NORMS,
    "forgotten bias",
    grads=(0, 1, 2),
    training=True,
)
def batch_norm(how: How, x: Tensor, mean: None, var: None, weight: Tensor, bias: Tensor) -> Tensor:
    normal = (x - how.mean(x, 0, True)) * how.inverse_root(how.variance(x, 0, True), 1e-5)
    return how.inner(normal) * weight + how.bias(bias)


@subject(
    "group_norm",
    functional.group_norm,
    lambda d: (d.data(4, 16, 32), 4, d.gain(16), d.weight(16)),
    *NORMS,
    grads=(0, 1, 2),
)
def group_norm(how: How, x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    grouped = x.reshape(4, 4, 128)
    normal = (grouped - how.mean(grouped, 2, True)) * how.inverse_root(how.variance(grouped, 2, True), 1e-5)
    return how.inner(normal).view(4, 16, 32) * weight.view(1, 16, 1) + how.bias(bias).view(1, 16, 1)


# Softmax, losses, attention


@subject("softmax", functional.softmax, lambda d: (d.data(40, 300),), *SUMS, "no maximum", grads=(0,), dim=1)
def softmax(how: How, x: Tensor) -> Tensor:
    powers, total, _ = how.exponentials(x, 1)
    return powers * (1 / total) if how.backwards else powers / total


@subject(
    "log_softmax",
    functional.log_softmax,
    lambda d: (d.data(40, 300),),
    *SUMS,
    "no maximum",
    grads=(0,),
    dim=1,
)
def log_softmax(how: How, x: Tensor) -> Tensor:
    _, total, top = how.exponentials(x, 1)
    return (x - top) - total.log()


@subject(
    "cross_entropy",
    functional.cross_entropy,
    lambda d: (d.data(64, 200), d.index(200, 64)),
    *SUMS,
    "counts one too few",
    grads=(0,),
)
def cross_entropy(how: How, x: Tensor, target: Tensor) -> Tensor:
    picked = log_softmax(how, x).gather(1, target.unsqueeze(1)).squeeze(1)
    return -how.mean(picked, 0)


@subject("mse_loss", functional.mse_loss, lambda d: (d.data(1500), d.data(1500)), *SUMS, "counts one too few")
def mse_loss(how: How, a: Tensor, b: Tensor) -> Tensor:
    return how.mean((a - b) * (a - b), 0)


@subject(
    "bce_with_logits",
    functional.binary_cross_entropy_with_logits,
    lambda d: (d.data(1500), d.chances(1500)),
    *SUMS,
    grads=(0,),
)
def bce_with_logits(how: How, x: Tensor, y: Tensor) -> Tensor:
    return how.mean((1 - y) * x + (-x.abs()).exp().log1p() + (-x).clamp(min=0), 0)


@subject(
    "attention",
    functional.scaled_dot_product_attention,
    lambda d: (d.data(2, 2, 40, 32), d.data(2, 2, 40, 32), d.data(2, 2, 40, 32)),
    "mask off by one",
    "wrong scale",
    "no maximum",
    "dropped last term",
    "two roundings",
    "TF32 inputs",
    grads=(0, 1, 2),
    is_causal=True,
)
def attention(how: How, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = how.matmul(q, k.transpose(-1, -2)) * how.scale(32**-0.5)
    scores = scores.masked_fill(~how.causal(40, 40), -math.inf)
    powers, total, _ = how.exponentials(scores, -1)
    if how.online:  # divided once at the end, as flash attention does
        return how.matmul(how.inner(powers), v) / total
    return how.matmul(how.inner(powers / total), v)


# Sums at indices


@subject(
    "index_add",
    torch.index_add,
    lambda d: (d.data(32, 48), 0, d.index(32, 128), d.data(128, 48)),
    "duplicates overwrite",
)
def index_add(how: How, x: Tensor, dim: int, index: Tensor, rows: Tensor) -> Tensor:
    return how.add_at(x, index, rows)


@subject(
    "index_put",
    torch.index_put,
    lambda d: (d.data(32, 48), (d.index(32, 128),), d.data(128, 48)),
    "duplicates overwrite",
    accumulate=True,
)
def index_put(how: How, x: Tensor, index: tuple[Tensor], rows: Tensor) -> Tensor:
    return how.add_at(x, index[0], rows)


SUBJECTS.append(
    Subject(
        "embedding gradient",
        functional.embedding,
        lambda d: (d.index(32, 128), d.weight(32, 48)),
        lambda how, i, w: functional.embedding(i, w),
        wants_grad=(1,),
    )
)


# Movement: nothing may change


@subject("index_select", torch.index_select, lambda d: (d.data(64, 40), 0, d.index(64, 50)))
def index_select(how: How, x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x[index]


@subject("cat", torch.cat, lambda d: ((d.data(30, 40), d.data(40, 20).t()),))
def cat(how: How, parts: tuple[Tensor, Tensor]) -> Tensor:
    return torch.cat(parts)


@subject("masked_fill", torch.masked_fill, lambda d: (d.data(37, 113), d.index(2, 37, 113).bool(), 0.0))
def masked_fill(how: How, x: Tensor, mask: Tensor, value: float) -> Tensor:
    return torch.where(mask, torch.tensor(value), x)


@subject("relu", torch.relu, lambda d: (d.data(37, 113),), grads=(0,))
def relu(how: How, x: Tensor) -> Tensor:
    return x * (x > 0)
