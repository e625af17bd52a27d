"""More operators of the corpus that add up: losses, distances, long rows, one row, windows, Winograd's convolution."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from verdict_arithmetic import How
from verdict_subjects import NORMS, PRODUCTS, SUMS, subject
from verdict_sums import log_softmax, rms_norm

Tensor = torch.Tensor


@subject("std", torch.std, lambda d: (d.data(120, 331),), *SUMS, "biased variance", dim=1)
def std(how: How, x: Tensor) -> Tensor:
    return how.variance(x, 1, correction=1).sqrt()


@subject("var_mean", torch.var_mean, lambda d: (d.data(331, 60),), *SUMS, "biased variance", dim=0)
def var_mean(how: How, x: Tensor) -> tuple[Tensor, Tensor]:
    return how.variance(x, 0, correction=1), how.mean(x, 0)


@subject("long sum", torch.sum, lambda d: (d.data(6, 20000),), *SUMS, dim=1)
def long_sum(how: How, x: Tensor) -> Tensor:
    return how.sum(x, 1)


@subject(
    "long cross_entropy",
    functional.cross_entropy,
    lambda d: (d.data(24, 4000), d.index(4000, 24)),
    *SUMS,
    grads=(0,),
    reduction="none",
)
def long_cross_entropy(how: How, x: Tensor, target: Tensor) -> Tensor:
    return -log_softmax(how, x).gather(1, target.unsqueeze(1)).squeeze(1)


@subject(
    "one row rms_norm",
    functional.rms_norm,
    lambda d: (d.data(1, 512), (512,), d.gain(512), 1e-5),
    *NORMS,
    grads=(0, 1),
)
def one_row_rms_norm(how: How, x: Tensor, shape: tuple[int], weight: Tensor, eps: float) -> Tensor:
    return rms_norm(how, x, shape, weight, eps)  # type: ignore[no-any-return]


@subject(
    "normalize",
    functional.normalize,
    lambda d: (d.data(24, 300),),
    "dropped last term",
    "dropped last block",
    grads=(0,),
    dim=1,
)
def normalize(how: How, x: Tensor) -> Tensor:
    norm = how.sum(x * x, 1, True).sqrt().clamp(min=1e-12)
    return x * (1 / norm) if how.backwards else x / norm


@subject(
    "cosine_similarity",
    functional.cosine_similarity,
    lambda d: (d.data(80, 200), d.data(80, 200)),
    *SUMS,
    grads=(0,),
    dim=1,
)
def cosine_similarity(how: How, a: Tensor, b: Tensor) -> Tensor:
    if how.backwards:
        a, b = (x / how.sum(x * x, 1, True).sqrt().clamp(min=1e-8) for x in (a, b))
        return how.sum(a * b, 1)
    squares = (how.sum(a * a, 1) * how.sum(b * b, 1)).clamp(min=1e-16)
    return how.sum(a * b, 1) / squares.sqrt()


@subject(
    "smooth_l1_loss",
    functional.smooth_l1_loss,
    lambda d: (d.data(1500), d.data(1500)),
    *SUMS,
    "counts one too few",
    grads=(0,),
)
def smooth_l1_loss(how: How, a: Tensor, b: Tensor) -> Tensor:
    distance = (a - b).abs()
    return how.mean(torch.where(distance < 1, 0.5 * distance * distance, distance - 0.5), 0)


@subject("l1_loss", functional.l1_loss, lambda d: (d.data(1500), d.data(1500)), *SUMS, grads=(0,))
def l1_loss(how: How, a: Tensor, b: Tensor) -> Tensor:
    return how.mean((a - b).abs(), 0)


@subject(
    "kl_div",
    functional.kl_div,
    lambda d: (-d.positive(30, 60), d.chances(30, 60)),
    *SUMS,
    grads=(0,),
    reduction="sum",
)
def kl_div(how: How, log_q: Tensor, p: Tensor) -> Tensor:
    return how.sum_all(torch.where(p > 0, p * (p.clamp(min=1e-38).log() - log_q), 0.0))


@subject("instance_norm", functional.instance_norm, lambda d: (d.data(4, 6, 14, 14),), *NORMS, grads=(0,))
def instance_norm(how: How, x: Tensor) -> Tensor:
    rows = x.reshape(24, 196)
    normal = (rows - how.mean(rows, 1, True)) * how.inverse_root(how.variance(rows, 1, True), 1e-5)
    return normal.view(4, 6, 14, 14)


@subject(
    "conv1d",
    functional.conv1d,
    lambda d: (d.data(3, 12, 50), d.weight(8, 12, 5), d.weight(8)),
    *PRODUCTS,
    "forgotten bias",
    grads=(0, 1, 2),
    padding=2,
)
def conv1d(how: How, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    columns = functional.unfold(x.unsqueeze(2), (1, 5), padding=(0, 2))
    return how.matmul(weight.flatten(1), columns) + how.bias(bias).view(-1, 1)


# Winograd's F(2x2, 3x3): tiles of 4x4 of the input give 2x2 of the output with 16 products instead of 36.
_INPUT = torch.tensor([[1.0, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
_WEIGHT = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
_OUTPUT = torch.tensor([[1.0, 1, 1, 0], [0, 1, -1, -1]])


@subject(
    "3x3 conv2d",
    functional.conv2d,
    lambda d: (d.data(2, 20, 12, 12), d.weight(10, 20, 3, 3), d.weight(10)),
    *PRODUCTS,
    "forgotten bias",
    "two roundings",
    grads=(0, 1, 2),
    padding=1,
)
def winograd(how: How, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if not how.online:
        columns = functional.unfold(x, 3, padding=1)
        found = how.inner(how.matmul(weight.flatten(1), columns))
        return (found + how.bias(bias).view(-1, 1)).view(2, 10, 12, 12)
    tiles = functional.pad(x, (1, 1, 1, 1)).unfold(2, 4, 2).unfold(3, 4, 2)  # n c 6 6 4 4
    transformed = _INPUT @ tiles @ _INPUT.t()
    kernels = _WEIGHT @ weight @ _WEIGHT.t()
    products = torch.einsum("ncxyij,ocij->noxyij", transformed, kernels)
    found = _OUTPUT @ products @ _OUTPUT.t()  # n o 6 6 2 2
    return found.permute(0, 1, 2, 4, 3, 5).reshape(2, 10, 12, 12) + how.bias(bias).view(1, -1, 1, 1)


@subject(
    "conv_transpose2d",
    functional.conv_transpose2d,
    lambda d: (d.data(2, 12, 6, 6), d.weight(12, 5, 3, 3)),
    *PRODUCTS,
)
def conv_transpose2d(how: How, x: Tensor, weight: Tensor) -> Tensor:
    columns = how.matmul(weight.flatten(1).t(), x.flatten(2))
    return functional.fold(columns, (8, 8), 3)


@subject(
    "baddbmm",
    torch.baddbmm,
    lambda d: (d.data(4, 20, 24), d.data(4, 20, 150), d.data(4, 150, 24)),
    *PRODUCTS,
    "two roundings",
    beta=0.5,
)
def baddbmm(how: How, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return 0.5 * c + how.inner(how.matmul(a, b))


@subject("mv", torch.mv, lambda d: (d.data(200, 300), d.data(300)), *PRODUCTS)
def mv(how: How, a: Tensor, b: Tensor) -> Tensor:
    return how.matmul(a, b.unsqueeze(1)).squeeze(1)


@subject(
    "matmul", torch.matmul, lambda d: (d.data(2, 3, 20, 64), d.data(2, 3, 64, 30)), *PRODUCTS, grads=(0, 1)
)
def matmul(how: How, a: Tensor, b: Tensor) -> Tensor:
    return how.matmul(a, b)


@subject(
    "cdist",
    torch.cdist,
    lambda d: (d.data(30, 24), d.data(20, 24)),
    "dropped last term",
    "dropped last block",
)
def cdist(how: How, a: Tensor, b: Tensor) -> Tensor:
    return how.sum((a.unsqueeze(1) - b.unsqueeze(0)).square(), 2).sqrt()


@subject(
    "adaptive_avg_pool2d",
    functional.adaptive_avg_pool2d,
    lambda d: (d.data(3, 5, 24, 24), (3, 3)),
    "dropped last term",
)
def adaptive_avg_pool2d(how: How, x: Tensor, size: tuple[int, int]) -> Tensor:
    windows = functional.unfold(x.flatten(0, 1).unsqueeze(1), 8, stride=8)
    return how.sum(windows, 1).div(64).view(3, 5, 3, 3)


@subject(
    "interpolate",
    functional.interpolate,
    lambda d: (d.data(2, 6, 9, 9),),
    grads=(0,),
    scale_factor=2,
    mode="bilinear",
    align_corners=False,
)
def interpolate(how: How, x: Tensor) -> Tensor:
    def along(x: Tensor, dim: int) -> Tensor:
        near = x.index_select(dim, torch.arange(9))
        below = near.index_select(dim, torch.arange(-1, 8).clamp(min=0))
        above = near.index_select(dim, torch.arange(1, 10).clamp(max=8))
        pairs = (0.75 * near + 0.25 * below, 0.75 * near + 0.25 * above)
        return torch.stack(pairs, dim + 1).flatten(dim, dim + 1)

    return along(along(x, 3), 2) if how.backwards else along(along(x, 2), 3)


@subject(
    "scatter_add",
    torch.scatter_add,
    lambda d: (d.data(32, 48), 0, d.index(32, 128).unsqueeze(1).expand(128, 48), d.data(128, 48)),
    "duplicates overwrite",
)
def scatter_add(how: How, x: Tensor, dim: int, index: Tensor, rows: Tensor) -> Tensor:
    return how.add_at(x, index[:, 0], rows)


@subject("cumprod", torch.cumprod, lambda d: (d.gain(24, 200),), dim=1)
def cumprod(how: How, x: Tensor) -> Tensor:
    if how.backwards:
        halves = x.split(100, 1)
        first = halves[0].cumprod(1)
        return torch.cat((first, halves[1].cumprod(1) * first[:, -1:]), 1)
    return x.cumprod(1)


@subject(
    "full attention",
    functional.scaled_dot_product_attention,
    lambda d: (d.data(2, 3, 24, 64), d.data(2, 3, 90, 64), d.data(2, 3, 90, 64)),
    "wrong scale",
    "no maximum",
    "dropped last term",
    "dropped last block",
    "two roundings",
    "TF32 inputs",
)
def full_attention(how: How, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q * math.sqrt(how.scale(64**-0.5))
    k = k * math.sqrt(how.scale(64**-0.5))
    powers, total, _ = how.exponentials(how.matmul(q, k.transpose(-1, -2)), -1)
    if how.online:
        return how.matmul(how.inner(powers), v) / total
    return how.matmul(how.inner(powers / total), v)
