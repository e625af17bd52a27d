"""Operators of the corpus that work element by element, each by several formulas."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from verdict_arithmetic import How
from verdict_subjects import subject

Tensor = torch.Tensor

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
    if how.backwards:
        return 0.5 * torch.tanh(0.5 * x) + 0.5
    return 1 / (1 + (-x).exp())


@subject("gelu", functional.gelu, lambda d: (d.data(*N),), grads=(0,))
def gelu(how: How, x: Tensor) -> Tensor:
    if how.backwards:
        return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
    return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))


@subject("silu", functional.silu, lambda d: (d.data(*N),), grads=(0,))
def silu(how: How, x: Tensor) -> Tensor:
    if how.backwards:
        return 0.5 * x * (1 + torch.tanh(0.5 * x))
    return x / (1 + (-x.clamp(min=-80)).exp()) if how.online else x * torch.sigmoid(x)


@subject("rsqrt", torch.rsqrt, lambda d: (d.positive(*N),))
def rsqrt(how: How, x: Tensor) -> Tensor:
    return 1 / x.sqrt()


@subject("pow", torch.pow, lambda d: (d.data(*N),), exponent=3.0)
def power(how: How, x: Tensor) -> Tensor:
    return x * x * x


@subject("addcmul", torch.addcmul, lambda d: (d.data(*N), d.data(*N), d.data(*N)))
def addcmul(how: How, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.addcmul(a.double(), b.double(), c.double()).float()


@subject("log", torch.log, lambda d: (d.positive(*N),), grads=(0,))
def log(how: How, x: Tensor) -> Tensor:
    return torch.log2(x) * math.log(2) if how.backwards else x.log()


@subject("log1p", torch.log1p, lambda d: (d.positive(*N),))
def log1p(how: How, x: Tensor) -> Tensor:
    total = 1 + x
    exact = x - (total - 1)  # what was lost in the sum
    return total.log() + exact / total if how.backwards else x.log1p()


@subject("expm1", torch.expm1, lambda d: (d.data(*N).clamp(-8, 8),))
def expm1(how: How, x: Tensor) -> Tensor:
    return torch.tanh(x / 2) * (x.exp() + 1) if how.backwards else x.expm1()


@subject("sin", torch.sin, lambda d: (d.data(*N).clamp(-200, 200),), grads=(0,))
def sin(how: How, x: Tensor) -> Tensor:
    return torch.cos(x.double() - math.pi / 2).float() if how.backwards else x.sin()


@subject("cos", torch.cos, lambda d: (d.data(*N).clamp(-200, 200),))
def cos(how: How, x: Tensor) -> Tensor:
    return 1 - 2 * torch.sin(x.double() / 2).square().float() if how.backwards else x.cos()


@subject("sqrt", torch.sqrt, lambda d: (d.positive(*N),), grads=(0,))
def sqrt(how: How, x: Tensor) -> Tensor:
    return x * x.rsqrt() if how.backwards else x.sqrt()


@subject("reciprocal", torch.reciprocal, lambda d: (d.positive(*N),))
def reciprocal(how: How, x: Tensor) -> Tensor:
    guess = 1 / (x * 1.0001)
    return guess * (2 - x * guess) * (2 - x * (guess * (2 - x * guess))) if how.backwards else 1 / x


@subject("erf", torch.erf, lambda d: (d.data(*N),))
def erf(how: How, x: Tensor) -> Tensor:
    return torch.erf(x.double()).float()


@subject("atan", torch.atan, lambda d: (d.data(*N),))
def atan(how: How, x: Tensor) -> Tensor:
    if not how.backwards:
        return x.atan()
    far = x.abs() > 1
    near = torch.where(far, 1 / x, x).atan()
    return torch.where(far, x.sign() * math.pi / 2 - near, near)


@subject("softplus", functional.softplus, lambda d: (d.data(*N),), grads=(0,))
def softplus(how: How, x: Tensor) -> Tensor:
    return (
        torch.logaddexp(x, torch.zeros_like(x))
        if how.backwards
        else (-x.abs()).exp().log1p() + x.clamp(min=0)
    )


@subject("logsigmoid", functional.logsigmoid, lambda d: (d.data(*N),), grads=(0,))
def logsigmoid(how: How, x: Tensor) -> Tensor:
    return x.clamp(max=0) - (-x.abs()).exp().log1p()


@subject("mish", functional.mish, lambda d: (d.data(*N),), grads=(0,))
def mish(how: How, x: Tensor) -> Tensor:
    if how.backwards and not x.requires_grad:  # tanh(log(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1)
        e = x.clamp(max=15).exp()
        return x * (e * (e + 2)) / (e * (e + 2) + 2)
    return x * torch.tanh(functional.softplus(x))


@subject("tanh gelu", functional.gelu, lambda d: (d.data(*N),), grads=(0,), approximate="tanh")
def tanh_gelu(how: How, x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x * torch.sigmoid(2 * inner) if how.backwards else 0.5 * x * (1 + torch.tanh(inner))


@subject("hardswish", functional.hardswish, lambda d: (d.data(*N),), grads=(0,))
def hardswish(how: How, x: Tensor) -> Tensor:
    return x * (x + 3).clamp(0, 6) * (1 / 6) if how.backwards else x * (x + 3).clamp(0, 6) / 6


@subject("elu", functional.elu, lambda d: (d.data(*N),), grads=(0,))
def elu(how: How, x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x.clamp(max=0).expm1())


@subject("leaky_relu", functional.leaky_relu, lambda d: (d.data(*N),), negative_slope=0.01)
def leaky_relu(how: How, x: Tensor) -> Tensor:
    return torch.maximum(x, 0.01 * x) if how.backwards else torch.where(x > 0, x, x * 0.01)


@subject("glu", functional.glu, lambda d: (d.data(37, 226),), grads=(0,), dim=1)
def glu(how: How, x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return a / (1 + (-b.clamp(min=-80)).exp()) if how.backwards else a * torch.sigmoid(b)


@subject("lerp", torch.lerp, lambda d: (d.data(*N), d.data(*N)), weight=0.3)
def lerp(how: How, a: Tensor, b: Tensor) -> Tensor:
    return a * 0.7 + b * 0.3 if how.backwards else a + 0.3 * (b - a)


@subject("addcdiv", torch.addcdiv, lambda d: (d.data(*N), d.data(*N), d.positive(*N)), value=0.1)
def addcdiv(how: How, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a + (0.1 * b) / c if how.backwards else a + 0.1 * (b / c)


@subject("hypot", torch.hypot, lambda d: (d.data(*N), d.data(*N)))
def hypot(how: How, a: Tensor, b: Tensor) -> Tensor:
    return (a * a + b * b).sqrt()


@subject("logaddexp", torch.logaddexp, lambda d: (d.data(*N), d.data(*N)))
def logaddexp(how: How, a: Tensor, b: Tensor) -> Tensor:
    return torch.maximum(a, b) + (-(a - b).abs()).exp().log1p()


@subject("div by number", torch.div, lambda d: (d.data(*N), 3.1))
def div_by_number(how: How, a: Tensor, number: float) -> Tensor:
    return a * (1 / torch.tensor(number)) if how.backwards else a / number


@subject("neg", torch.neg, lambda d: (d.data(*N),))
def neg(how: How, x: Tensor) -> Tensor:
    return -x


@subject("clamp", torch.clamp, lambda d: (d.data(*N),), min=-0.5, max=0.5)
def clamp(how: How, x: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, torch.tensor(-0.5)), torch.tensor(0.5))
