"""Right and wrong generators of random numbers: what `random_quality` measures the judge of random operators with.

A subject is one operator with its arguments. Right variants draw in ways that real devices draw in (other transformations, fewer
mantissa bits, rounded from float32); wrong variants have one fault each. Faults marked as held out were written with the
others and are no guide for the rules: they are run to see what the rules make of faults that nobody had in mind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

Results = tuple[Any, ...]
# (number of elements, generator, arguments of the call) -> flat results
Variant = Callable[[int, Generator, tuple[Any, ...]], Results]


@dataclass(frozen=True)
class Subject:
    """One random operator, called with `args(n, generator)`."""

    name: str
    call: str
    args: Callable[[int, Generator], tuple[Any, ...]]
    right: dict[str, Variant]
    wrong: dict[str, Variant] = field(default_factory=dict)
    held_out: dict[str, Variant] = field(default_factory=dict)


def uniforms(n: int, g: Generator, bits: int = 24) -> Tensor:
    """Multiples of 2^-bits in [0, 1), in float64."""
    return torch.randint(1 << bits, (n,), generator=g).double() / (1 << bits)


def normals(n: int, g: Generator) -> Tensor:
    return torch.randn(n, generator=g)


# Faults of any generator: each takes draws and spoils them.

Spoil = Callable[[Tensor, Generator], Tensor]


def _repeated_block(x: Tensor, g: Generator) -> Tensor:
    block = max(1, x.numel() // 4)
    return x[:block].repeat(5)[: x.numel()]


def _rows_twice(x: Tensor, g: Generator) -> Tensor:
    rows = x[: x.numel() // 64 * 64].view(-1, 64).clone()
    rows[1::2] = rows[: rows.shape[0] // 2 * 2 : 2][: rows[1::2].shape[0]]
    return torch.cat([rows.view(-1), x[rows.numel() :]])


def _last_rows_again(x: Tensor, g: Generator) -> Tensor:
    """The last eighth is the eighth before: two thread blocks with one counter."""
    part = x.numel() // 8
    return torch.cat([x[: x.numel() - part], x[-2 * part : -part]])


def _constant_lane(x: Tensor, g: Generator) -> Tensor:
    x = x.clone()
    x[7::32] = x[7].item()
    return x


def _unwritten_tail(x: Tensor, g: Generator) -> Tensor:
    x = x.clone()
    x[-max(1, x.numel() // 16) :] = 0
    return x


def _one_nan(x: Tensor, g: Generator) -> Tensor:
    x = x.clone()
    x[int(torch.randint(x.numel(), (), generator=g))] = math.nan
    return x


def _one_inf(x: Tensor, g: Generator) -> Tensor:
    x = x.clone()
    x[int(torch.randint(x.numel(), (), generator=g))] = math.inf
    return x


def _sorted(x: Tensor, g: Generator) -> Tensor:
    return x.sort().values


def _pairs_equal(x: Tensor, g: Generator) -> Tensor:
    return x[: (x.numel() + 1) // 2].repeat_interleave(2)[: x.numel()]


def _pair_sorted(x: Tensor, g: Generator) -> Tensor:
    """The smaller of two neighbours first."""
    even = x[: x.numel() // 2 * 2].view(-1, 2).sort(1).values.view(-1)
    return torch.cat([even, x[even.numel() :]])


ANY: dict[str, Spoil] = {
    "repeated block": _repeated_block, "rows twice": _rows_twice, "last rows again": _last_rows_again,
    "constant lane": _constant_lane, "unwritten tail": _unwritten_tail, "sorted": _sorted, "pairs equal": _pairs_equal,
}  # fmt: skip
FLOATING: dict[str, Spoil] = {"one NaN": _one_nan, "one Inf": _one_inf}
ANY_HELD_OUT: dict[str, Spoil] = {
    "smaller neighbour first": _pair_sorted,
    "odd row reversed copy": lambda x, g: torch.cat([x[: x.numel() // 2], x[: (x.numel() + 1) // 2].flip(0)]),
    "one warp of 16 stuck for 64 draws": lambda x, g: _stuck_warp(x),
}


def _stuck_warp(x: Tensor) -> Tensor:
    rows = x[: x.numel() // 1024 * 1024].view(-1, 16, 64).clone()
    rows[:, 5] = rows[:, 5, :1]
    return torch.cat([rows.view(-1), x[rows.numel() :]])


def spoiled(draw: Variant, spoils: dict[str, Spoil]) -> dict[str, Variant]:
    """Variants that draw and then spoil the first result."""

    def variant(spoil: Spoil) -> Variant:
        def made(n: int, g: Generator, args: tuple[Any, ...]) -> Results:
            first, *others = draw(n, g, args)
            return spoil(first.reshape(-1), g).view(first.shape), *others

        return made

    return {name: variant(spoil) for name, spoil in spoils.items()}


# Continuous


def of(function: Callable[[int, Generator], Tensor], dtype: torch.dtype = torch.float32) -> Variant:
    return lambda n, g, args: (function(n, g).to(dtype),)


def _size(n: int, g: Generator) -> tuple[Any, ...]:
    return (n,)


def _box_muller(n: int, g: Generator) -> Tensor:
    half = (n + 1) // 2
    radius = (-2 * torch.log(1 - uniforms(half, g).float())).sqrt()
    angle = 2 * math.pi * uniforms(half, g).float()
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1).view(-1)[:n]


def _box_muller_one_radius(n: int, g: Generator) -> Tensor:
    """Four values of one radius: uncorrelated, not independent."""
    part = (n + 3) // 4
    radius = (-2 * torch.log(1 - uniforms(part, g).float())).sqrt()
    angles = 2 * math.pi * uniforms(2 * part, g).float().view(-1, 2)
    return (radius[:, None, None] * torch.stack([angles.cos(), angles.sin()], -1)).view(-1)[:n]


def _sum_of_uniforms(n: int, g: Generator) -> Tensor:
    """Twelve uniform numbers: a normal distribution without tails."""
    return sum((uniforms(n, g) for _ in range(11)), uniforms(n, g)) - 6


def _autoregressive(n: int, g: Generator) -> Tensor:
    """Neighbours correlated by 0.1, as an exponential filter leaves them."""
    x = torch.randn(n + 8, generator=g)
    kernel = 0.1 ** torch.arange(8.0)
    return x.unfold(0, 8, 1)[:n].matmul(kernel.flip(0)) * math.sqrt(1 - 0.01)


def _correlated_pairs(rho: float) -> Callable[[int, Generator], Tensor]:
    def draw(n: int, g: Generator) -> Tensor:
        x = torch.randn((n + 1) // 2, 2, generator=g)
        x[:, 1] = rho * x[:, 0] + math.sqrt(1 - rho * rho) * x[:, 1]
        return x.view(-1)[:n]

    return draw


def _cut(limit: float) -> Callable[[int, Generator], Tensor]:
    def draw(n: int, g: Generator) -> Tensor:
        x = torch.randn(n + n // 8 + 64, generator=g)
        return x[x.abs() < limit][:n]

    return draw


def _grid(n: int, g: Generator, bits: int) -> Tensor:
    return torch.special.ndtri((torch.randint(1 << bits, (n,), generator=g).double() + 0.5) / (1 << bits))


def _swapped_halves(n: int, g: Generator) -> Tensor:
    x = torch.randn(n, generator=g)
    return torch.cat([x[: n // 2], -x[: n - n // 2]])


NORMAL_RIGHT = {
    "torch": of(normals), "Box-Muller": of(_box_muller), "inverse of 23 bits": of(lambda n, g: _grid(n, g, 23)),
}  # fmt: skip
NORMAL = Subject(
    "randn", "torch.randn", _size, NORMAL_RIGHT,
    {
        **spoiled(of(normals), {**ANY, **FLOATING}),
        "deviation 1.02": of(lambda n, g: normals(n, g) * 1.02),
        "deviation 0.98": of(lambda n, g: normals(n, g) * 0.98),
        "mean 0.02": of(lambda n, g: normals(n, g) + 0.02),
        "absolute values": of(lambda n, g: normals(n, g).abs()),
        "correlated pairs 0.5": of(_correlated_pairs(0.5)),
        "correlated pairs 0.1": of(_correlated_pairs(0.1)),
        "autoregressive 0.1": of(_autoregressive),
        "tails cut at 3": of(_cut(3.0)),
        "sum of 12 uniforms": of(_sum_of_uniforms),
        "uniform of the same variance": of(lambda n, g: (uniforms(n, g) - 0.5) * math.sqrt(12)),
        "8 bits": of(lambda n, g: _grid(n, g, 8)),
        "12 bits": of(lambda n, g: _grid(n, g, 12)),
        "negated second half": of(_swapped_halves),
        "one radius for four": of(_box_muller_one_radius),
        "cosine twice": of(lambda n, g: _box_muller(n, g)[::2].repeat_interleave(2)[:n] if n % 2 == 0 else normals(n, g)),
    },
    {
        **spoiled(of(normals), ANY_HELD_OUT),
        "logistic of the same variance": of(lambda n, g: torch.logit(uniforms(n, g).clamp(1e-9)) * math.sqrt(3) / math.pi),
        "1 % of triple width": of(lambda n, g: normals(n, g) * torch.where(uniforms(n, g) < 0.01, 3.0, 1.0)),
        "zero in 1 of 1000": of(lambda n, g: normals(n, g) * (uniforms(n, g) >= 0.001)),
        "16 bits": of(lambda n, g: _grid(n, g, 16)),
        "lag 1000": of(lambda n, g: _lagged(normals(n, g), min(1000, n // 2))),
        "wider in every second row": of(lambda n, g: normals(n, g) * torch.where(torch.arange(n) // 100 % 2 == 0, 1.1, 0.9)),
        "drifting mean": of(lambda n, g: normals(n, g) + torch.linspace(-0.05, 0.05, n)),
        "bfloat16 values": of(lambda n, g: normals(n, g).bfloat16().float()),
    },
)  # fmt: skip


def _lagged(x: Tensor, lag: int) -> Tensor:
    y = x.clone()
    y[lag:] = 0.2 * x[:-lag] + math.sqrt(0.96) * x[lag:]
    return y


SCALED_NORMAL = Subject(
    "normal_(5, 0.1)", "aten.normal_.default", lambda n, g: (torch.zeros(n), 5.0, 0.1),
    {"torch": lambda n, g, a: (torch.zeros(n).normal_(5, 0.1, generator=g),)},
    {
        "variance for deviation": lambda n, g, a: (torch.zeros(n).normal_(5, math.sqrt(0.1), generator=g),),
        "mean ignored": lambda n, g, a: (torch.zeros(n).normal_(0, 0.1, generator=g),),
        "deviation 0.102": lambda n, g, a: (torch.zeros(n).normal_(5, 0.102, generator=g),),
        "bfloat16 values": lambda n, g, a: (torch.zeros(n).normal_(5, 0.1, generator=g).bfloat16().float(),),
    },
)  # fmt: skip


def _means(n: int, g: Generator) -> tuple[Any, ...]:
    return torch.randn(n, generator=g) * 3, torch.rand(n, generator=g) + 0.5


NORMAL_TENSORS = Subject(
    "normal(tensors)", "torch.normal", _means,
    {"torch": lambda n, g, a: (torch.normal(a[0], a[1], generator=g),)},
    {
        "mean of another element": lambda n, g, a: (torch.normal(a[0].roll(1), a[1], generator=g),),
        "deviation of another element": lambda n, g, a: (torch.normal(a[0], a[1].roll(1), generator=g),),
        "mean deviation for all": lambda n, g, a: (torch.normal(a[0], a[1].mean().expand(n), generator=g),),
    },
    {"large deviations clamped": lambda n, g, a: (torch.normal(a[0], a[1].clamp(max=1.4), generator=g),)},
)  # fmt: skip


def _stuck_bit(u: Tensor, bit: int) -> Tensor:
    whole = (u * (1 << 24)).long()
    return (whole | (1 << (24 - bit))).double() / (1 << 24)


def _congruential(n: int, g: Generator) -> Tensor:
    """A period of 4096."""
    state, found = int(torch.randint(4096, (), generator=g)), []
    for _ in range(min(n, 4096)):
        state = (state * 1229 + 351) % 4096
        found.append(state / 4096)
    return torch.tensor(found, dtype=torch.float64).repeat(-(-n // len(found)))[:n]


def _mirrored(u: Tensor) -> Tensor:
    half = u.numel() // 2
    return torch.cat([u[: u.numel() - half], (1 - 2**-24) - u[:half]])


def _correlated_bits(n: int, g: Generator) -> Tensor:
    """The second bit is the first in 60 % of the values."""
    whole = (uniforms(n, g) * (1 << 24)).long()
    first, second = (whole >> 23) & 1, (whole >> 22) & 1
    second = torch.where(uniforms(n, g) < 0.2, first, second)
    return ((whole & ~(1 << 22)) | (second << 22)).double() / (1 << 24)


UNIFORM = Subject(
    "rand", "torch.rand", _size,
    {
        "24 bits": of(uniforms), "23 bits": of(lambda n, g: uniforms(n, g, 23)),
        "32 bits": of(lambda n, g: uniforms(n, g, 32).clamp(max=1 - 2**-24)),
    },
    {
        **spoiled(of(uniforms), {**ANY, **FLOATING}),
        "8 bits": of(lambda n, g: uniforms(n, g, 8)),
        "12 bits": of(lambda n, g: uniforms(n, g, 12)),
        "with 1.0": of(lambda n, g: uniforms(n, g, 12) * (4096 / 4095)),
        "without the lower half": of(lambda n, g: uniforms(n, g) / 2 + 0.5),
        "between -1 and 1": of(lambda n, g: uniforms(n, g) * 2 - 1),
        "times 0.98": of(lambda n, g: uniforms(n, g) * 0.98),
        "square roots": of(lambda n, g: uniforms(n, g).sqrt()),
        "stuck bit of weight 1/16": of(lambda n, g: _stuck_bit(uniforms(n, g), 4)),
        "stuck bit of weight 1/1024": of(lambda n, g: _stuck_bit(uniforms(n, g), 10)),
        "linear congruential, small": of(_congruential),
        "mirrored halves": of(lambda n, g: _mirrored(uniforms(n, g))),
    },
    {
        **spoiled(of(uniforms), ANY_HELD_OUT),
        "16 bits": of(lambda n, g: uniforms(n, g, 16)),
        "bits correlated": of(_correlated_bits),
        "additive sequence": of(lambda n, g: (uniforms(1, g) + torch.arange(n) * 0.6180339887498949) % 1),
        "0.01 to 1": of(lambda n, g: uniforms(n, g) * 0.99 + 0.01),
        "stuck bit of weight 2^-13": of(lambda n, g: _stuck_bit(uniforms(n, g), 13)),
    },
)  # fmt: skip


def _half(dtype: torch.dtype) -> list[Subject]:
    label = str(dtype).removeprefix("torch.")
    digits = 8 if dtype == torch.bfloat16 else 11
    return [
        Subject(
            f"randn {label}", "torch.randn", _size,
            {"torch": lambda n, g, a: (torch.randn(n, generator=g, dtype=dtype),), "rounded": of(normals, dtype)},
            {
                **spoiled(of(normals, dtype), ANY),
                "deviation 1.02": of(lambda n, g: normals(n, g) * 1.02, dtype),
                "correlated pairs 0.1": of(_correlated_pairs(0.1), dtype),
                "tails cut at 3": of(_cut(3.0), dtype),
                "4 bits": of(lambda n, g: _grid(n, g, 4), dtype),
            },
            spoiled(of(normals, dtype), ANY_HELD_OUT),
        ),
        Subject(
            f"rand {label}", "torch.rand", _size,
            {
                "torch": lambda n, g, a: (torch.rand(n, generator=g, dtype=dtype),),
                "exact bits": of(lambda n, g: uniforms(n, g, digits), dtype),
            },
            {
                **spoiled(of(lambda n, g: uniforms(n, g, digits), dtype), ANY),
                "5 bits": of(lambda n, g: uniforms(n, g, 5), dtype),
                "rounded up to 1.0": of(uniforms, dtype),
                "times 0.96": of(lambda n, g: uniforms(n, g, digits) * 0.96, dtype),
            },
        ),
    ]  # fmt: skip


UNIFORM_INTERVAL = Subject(
    "uniform_(-2, 3)", "aten.uniform_.default", lambda n, g: (torch.zeros(n), -2.0, 3.0),
    {"torch": lambda n, g, a: (torch.zeros(n).uniform_(-2, 3, generator=g),)},
    {
        "bounds ignored": lambda n, g, a: (torch.zeros(n).uniform_(generator=g),),
        "symmetric": lambda n, g, a: (torch.zeros(n).uniform_(-2, 2, generator=g),),
        "to as a length": lambda n, g, a: (torch.zeros(n).uniform_(-2, 1, generator=g),),
        "triangular": lambda n, g, a: ((uniforms(n, g) + uniforms(n, g)).float() * 2.5 - 2,),
    },
)  # fmt: skip
EXPONENTIAL = Subject(
    "exponential_(2)", "aten.exponential_.default", lambda n, g: (torch.zeros(n), 2.0),
    {
        "torch": lambda n, g, a: (torch.zeros(n).exponential_(2, generator=g),),
        "logarithm": of(lambda n, g: -torch.log(1 - uniforms(n, g)) / 2),
    },
    {
        **spoiled(of(lambda n, g: -torch.log(1 - uniforms(n, g)) / 2), {**ANY, **FLOATING}),
        "rate as scale": of(lambda n, g: -torch.log(1 - uniforms(n, g)) * 2),
        "rate 2.04": of(lambda n, g: -torch.log(1 - uniforms(n, g)) / 2.04),
        "negative": of(lambda n, g: torch.log(1 - uniforms(n, g)) / 2),
        "half normal": of(lambda n, g: normals(n, g).abs() * 0.5 / math.sqrt(2 / math.pi)),
        "tail cut at 2": of(lambda n, g: (-torch.log(1 - uniforms(n, g)) / 2).clamp(max=2)),
        "of 8 bits": of(lambda n, g: -torch.log(1 - uniforms(n, g, 8)) / 2),
    },
    {"gamma of shape 1.05": of(lambda n, g: torch._standard_gamma(torch.full((n,), 1.05), generator=g) / 2.1)},
)  # fmt: skip
LOG_NORMAL = Subject(
    "log_normal_(0, 0.5)", "aten.log_normal_.default", lambda n, g: (torch.zeros(n), 0.0, 0.5),
    {"torch": lambda n, g, a: (torch.zeros(n).log_normal_(0, 0.5, generator=g),)},
    {
        "no exponential": of(lambda n, g: normals(n, g) * 0.5),
        "deviation 0.51": of(lambda n, g: (normals(n, g) * 0.51).exp()),
        "sorted": lambda n, g, a: (torch.zeros(n).log_normal_(0, 0.5, generator=g).sort().values,),
    },
)  # fmt: skip
CAUCHY = Subject(
    "cauchy_(1, 2)", "aten.cauchy_.default", lambda n, g: (torch.zeros(n), 1.0, 2.0),
    {"torch": lambda n, g, a: (torch.zeros(n).cauchy_(1, 2, generator=g),)},
    {
        "normal": of(lambda n, g: normals(n, g) * 2 + 1),
        "width 2.1": lambda n, g, a: (torch.zeros(n).cauchy_(1, 2.1, generator=g),),
        "median ignored": lambda n, g, a: (torch.zeros(n).cauchy_(0, 2, generator=g),),
        "tails cut at 100": lambda n, g, a: (torch.zeros(n).cauchy_(1, 2, generator=g).clamp(-100, 100),),
    },
)  # fmt: skip


CONTINUOUS = [
    NORMAL, SCALED_NORMAL, NORMAL_TENSORS, UNIFORM, UNIFORM_INTERVAL, *_half(torch.bfloat16), *_half(torch.float16),
    EXPONENTIAL, LOG_NORMAL, CAUCHY,
]  # fmt: skip
