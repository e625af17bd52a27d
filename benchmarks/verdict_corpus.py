"""The operators of the corpus: how inputs are drawn, the formula, and the faults that a kernel of it can have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from verdict_arithmetic import Fault, How

Tensor = torch.Tensor
REGIMES = ("normal", "offset", "wide", "small")


class Draw:
    """Inputs of one regime: around zero, away from zero, over many magnitudes, small."""

    def __init__(self, seed: int, regime: str, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._regime, self._dtype = regime, dtype

    def data(self, *shape: int) -> Tensor:
        x = torch.randn(*shape, generator=self._generator)
        if self._regime == "offset":
            x = x * 0.25 + 2
        elif self._regime == "wide":
            x = x.sign() * (1.5 * torch.randn(*shape, generator=self._generator)).exp()
        elif self._regime == "small":
            x = x * 2.0**-8
        return x.to(self._dtype)

    def weight(self, *shape: int) -> Tensor:
        """Parameters are of ordinary size whatever the data are."""
        scale = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 1.0
        return (torch.randn(*shape, generator=self._generator) * scale).to(self._dtype)

    def gain(self, *shape: int) -> Tensor:
        return (1 + 0.1 * torch.randn(*shape, generator=self._generator)).to(self._dtype)

    def positive(self, *shape: int) -> Tensor:
        return (self.data(*shape).float().abs() + 2.0**-10).to(self._dtype)

    def index(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self._generator)

    def chances(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._generator).to(self._dtype)


@dataclass(frozen=True)
class Subject:
    """One operator: `formula` says what it computes, over a `How`, on float32 inputs."""

    name: str
    func: Callable[..., Any]
    make: Callable[[Draw], tuple[Any, ...]]
    formula: Callable[..., Tensor]
    faults: tuple[Fault, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    wants_grad: tuple[int, ...] | None = None  # judge these inputs' gradients instead of the output


SUBJECTS: list[Subject] = []
SUMS: tuple[Fault, ...] = ("dropped last block", "dropped last term", "half sums")
PRODUCTS: tuple[Fault, ...] = (*SUMS, "TF32 inputs")


def subject(
    name: str,
    func: Callable[..., Any],
    make: Callable[[Draw], tuple[Any, ...]],
    *faults: Fault,
    grads: tuple[int, ...] | None = None,
    **kwargs: Any,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Adds an operator, and with `grads` one more for the gradients of those inputs."""

    def add(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
        SUBJECTS.append(Subject(name, func, make, formula, faults, kwargs))
        if grads is not None:
            SUBJECTS.append(Subject(f"{name} gradient", func, make, formula, faults, kwargs, grads))
        return formula

    return add


# Elementwise

N = (37, 113)


@subject("add", torch.add, lambda d: (d.data(*N), d.data(*N)), alpha=0.5)
def add(how: How, a: Tensor, b: Tensor) -> Tensor:
    return a + 0.5 * b


@subject("mul", torch.mul, lambda d: (d.data(*N), d.data(*N)))
def mul(how: How, a: Tensor, b: Tensor) -> Tensor:
    return a * b


@subject("div", torch.div, lambda d: (d.data(*N), d.positive(*N)))
def div(how: How, a: Tensor, b: Tensor) -> Tensor:
    return a * (1 / b) if how.backwards else a / b


@subject("exp", torch.exp, lambda d: (d.data(*N).clamp(-8, 8),))
def exp(how: How, x: Tensor) -> Tensor:
    return torch.exp2(x * math.log2(math.e)) if how.backwards else x.exp()


@subject("tanh", torch.tanh, lambda d: (d.data(*N),))
def tanh(how: How, x: Tensor) -> Tensor:
    e = torch.expm1(-2 * x.abs())
    return -e / (2 + e) * x.sign()


@subject("sigmoid", torch.sigmoid, lambda d: (d.data(*N),))
def sigmoid(how: How, x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


@subject("gelu", functional.gelu, lambda d: (d.data(*N),), grads=(0,))
def gelu(how: How, x: Tensor) -> Tensor:
    return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))


@subject("silu", functional.silu, lambda d: (d.data(*N),), grads=(0,))
def silu(how: How, x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@subject("rsqrt", torch.rsqrt, lambda d: (d.positive(*N),))
def rsqrt(how: How, x: Tensor) -> Tensor:
    return 1 / x.sqrt()


@subject("pow", torch.pow, lambda d: (d.data(*N),), exponent=3.0)
def power(how: How, x: Tensor) -> Tensor:
    return x * x * x


@subject("addcmul", torch.addcmul, lambda d: (d.data(*N), d.data(*N), d.data(*N)))
def addcmul(how: How, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.addcmul(a.double(), b.double(), c.double()).float()


# Reductions


@subject("sum", torch.sum, lambda d: (d.data(200, 331),), *SUMS, dim=1)
def total(how: How, x: Tensor) -> Tensor:
    return how.sum(x, 1)


@subject("mean", torch.mean, lambda d: (d.data(331, 200),), *SUMS, "counts one too few", dim=0)
def mean(how: How, x: Tensor) -> Tensor:
    return how.mean(x, 0)


@subject("var", torch.var, lambda d: (d.data(200, 331),), *SUMS, "counts one too few", dim=1)
def var(how: How, x: Tensor) -> Tensor:
    centred = x - how.mean(x, 1, True)
    return how.sum(centred * centred, 1) / (x.shape[1] - 1)


@subject("vector_norm", torch.linalg.vector_norm, lambda d: (d.data(200, 331),), *SUMS, dim=1)
def vector_norm(how: How, x: Tensor) -> Tensor:
    return how.sum(x * x, 1).sqrt()


@subject("logsumexp", torch.logsumexp, lambda d: (d.data(200, 331),), *SUMS, dim=1)
def logsumexp(how: How, x: Tensor) -> Tensor:
    top = x.amax(1, True).detach()
    return how.sum((x - top).exp(), 1).log() + top.squeeze(1)


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
)
def addmm(how: How, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return how.matmul(a, b) + how.bias(c)


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
    "dropped last block",
    "missing eps",
    "counts one too few",
    "forgotten bias",
    grads=(0, 1, 2),
)
def layer_norm(how: How, x: Tensor, shape: tuple[int], weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - how.mean(x, 1, True)
    return centred * (how.mean(centred * centred, 1, True) + how.eps(1e-5)).rsqrt() * weight + how.bias(bias)


@subject(
    "rms_norm",
    functional.rms_norm,
    lambda d: (d.data(48, 256), (256,), d.gain(256), 1e-5),
    "dropped last block",
    "missing eps",
    "counts one too few",
    grads=(0, 1),
)
def rms_norm(how: How, x: Tensor, shape: tuple[int], weight: Tensor, eps: float) -> Tensor:
    return x * (how.mean(x * x, 1, True) + how.eps(1e-5)).rsqrt() * weight


@subject(
    "batch_norm",
    functional.batch_norm,
    lambda d: (d.data(300, 24), None, None, d.gain(24), d.weight(24)),
    "dropped last block",
    "missing eps",
    "counts one too few",
    "forgotten bias",
    grads=(0, 1, 2),
    training=True,
)
def batch_norm(how: How, x: Tensor, mean: None, var: None, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - how.mean(x, 0, True)
    return centred * (how.mean(centred * centred, 0, True) + how.eps(1e-5)).rsqrt() * weight + how.bias(bias)


@subject(
    "group_norm",
    functional.group_norm,
    lambda d: (d.data(4, 16, 32), 4, d.gain(16), d.weight(16)),
    "dropped last block",
    "missing eps",
    "counts one too few",
)
def group_norm(how: How, x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    grouped = x.reshape(4, 4, 128)
    centred = grouped - how.mean(grouped, 2, True)
    normal = centred * (how.mean(centred * centred, 2, True) + how.eps(1e-5)).rsqrt()
    return normal.view(4, 16, 32) * weight.view(1, 16, 1) + how.bias(bias).view(1, 16, 1)


# Softmax, losses, attention


@subject("softmax", functional.softmax, lambda d: (d.data(40, 300),), *SUMS, grads=(0,), dim=1)
def softmax(how: How, x: Tensor) -> Tensor:
    e = (x - x.amax(1, True).detach()).exp()
    return e / how.sum(e, 1, True)


@subject("log_softmax", functional.log_softmax, lambda d: (d.data(40, 300),), *SUMS, grads=(0,), dim=1)
def log_softmax(how: How, x: Tensor) -> Tensor:
    centred = x - x.amax(1, True).detach()
    return centred - how.sum(centred.exp(), 1, True).log()


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
    "TF32 inputs",
    grads=(0, 1, 2),
    is_causal=True,
)
def attention(how: How, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = how.matmul(q, k.transpose(-1, -2)) * how.scale(32**-0.5)
    scores = scores.masked_fill(~how.causal(40, 40), -math.inf)
    e = (scores - scores.amax(-1, True).detach()).exp()
    return how.matmul(e / how.sum(e, -1, True), v)


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


@subject("relu", torch.relu, lambda d: (d.data(*N),), grads=(0,))
def relu(how: How, x: Tensor) -> Tensor:
    return x * (x > 0)
