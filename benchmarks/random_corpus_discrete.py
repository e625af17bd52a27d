"""Right and wrong generators of discrete numbers, permutations, picks and masks; see `random_corpus`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from random_corpus import ANY, ANY_HELD_OUT, Results, Subject, Variant, normals, spoiled, uniforms


def _bernoulli_draw(p: float) -> Variant:
    return lambda n, g, a: ((uniforms(n, g) < p).float(),)


BERNOULLI = Subject(
    "bernoulli_(0.3)", "aten.bernoulli_.float", lambda n, g: (torch.zeros(n), 0.3),
    {"torch": lambda n, g, a: (torch.zeros(n).bernoulli_(0.3, generator=g),)},
    {
        **spoiled(_bernoulli_draw(0.3), ANY),
        "1 - p": _bernoulli_draw(0.7),
        "p + 0.02": _bernoulli_draw(0.32),
        "p as 4 bits": lambda n, g, a: ((uniforms(n, g, 4) <= 0.3).float(),),
        "half": _bernoulli_draw(0.5),
        "the probability itself": lambda n, g, a: (torch.full((n,), 0.3),),
        "neighbours alike": lambda n, g, a: (_alike((uniforms(n, g) < 0.3).float(), uniforms(n, g) < 0.1),),
    },
    {
        **spoiled(_bernoulli_draw(0.3), ANY_HELD_OUT),
        "period of 1000": lambda n, g, a: ((uniforms(min(n, 1000), g) < 0.3).float().repeat(-(-n // 1000))[:n],),
        "exact share": lambda n, g, a: ((torch.arange(n) % 10 < 3).float(),),
    },
)  # fmt: skip


def _alike(x: Tensor, same: Tensor) -> Tensor:
    y = x.clone()
    y[1:] = torch.where(same[1:], x[:-1], x[1:])
    return y


def _probabilities(n: int, g: Generator) -> tuple[Any, ...]:
    return (torch.rand(n, generator=g),)


def _few_probabilities(n: int, g: Generator) -> tuple[Any, ...]:
    return (torch.tensor([0.1, 0.25, 0.5, 0.9]).repeat(-(-n // 4))[:n],)


BERNOULLI_TENSOR = Subject(
    "bernoulli(tensor)", "torch.bernoulli", _probabilities,
    {"torch": lambda n, g, a: (torch.bernoulli(a[0], generator=g),)},
    {
        "p ignored": lambda n, g, a: ((uniforms(n, g) < 0.5).float(),),
        "p of another element": lambda n, g, a: (torch.bernoulli(a[0].roll(1), generator=g),),
        "1 - p": lambda n, g, a: (torch.bernoulli(1 - a[0], generator=g),),
        "p rounded": lambda n, g, a: (a[0].round(),),
        "p squared": lambda n, g, a: (torch.bernoulli(a[0] ** 2, generator=g),),
        "p drawn towards a half": lambda n, g, a: (torch.bernoulli(0.9 * a[0] + 0.05, generator=g),),
    },
    {
        "p of 4 bits": lambda n, g, a: (torch.bernoulli((a[0] * 16).floor() / 16, generator=g),),
        "sorted draws": lambda n, g, a: ((uniforms(n, g).sort().values < a[0]).float(),),
    },
)  # fmt: skip
BERNOULLI_GROUPS = Subject(
    "bernoulli(4 values of p)", "torch.bernoulli", _few_probabilities,
    {"torch": lambda n, g, a: (torch.bernoulli(a[0], generator=g),)},
    {
        "mean of p": lambda n, g, a: (torch.bernoulli(a[0].mean().expand(n), generator=g),),
        "p of the neighbour": lambda n, g, a: (torch.bernoulli(a[0].roll(1), generator=g),),
        "0.25 for 0.1": lambda n, g, a: (torch.bernoulli(a[0].clamp(min=0.15), generator=g),),
    },
)  # fmt: skip


def _geometric_draw(p: float, n: int, g: Generator) -> Tensor:
    return (torch.log(1 - uniforms(n, g)) / math.log1p(-p)).ceil().clamp(min=1).float()


GEOMETRIC = Subject(
    "geometric_(0.3)", "aten.geometric_.default", lambda n, g: (torch.zeros(n), 0.3),
    {"torch": lambda n, g, a: (torch.zeros(n).geometric_(0.3, generator=g),)},
    {
        **spoiled(lambda n, g, a: (_geometric_draw(0.3, n, g),), ANY),
        "p + 0.02": lambda n, g, a: (_geometric_draw(0.32, n, g),),
        "from 0": lambda n, g, a: (_geometric_draw(0.3, n, g) - 1,),
        "1 - p": lambda n, g, a: (_geometric_draw(0.7, n, g),),
        "Poisson of the same mean": lambda n, g, a: (1 + torch.poisson(torch.full((n,), 7 / 3), generator=g),),
        "at most 8": lambda n, g, a: (_geometric_draw(0.3, n, g).clamp(max=8),),
    },
    {"no value 4": lambda n, g, a: (_without(_geometric_draw(0.3, n, g), 4),)},
)  # fmt: skip


def _without(x: Tensor, value: int) -> Tensor:
    return torch.where(x == value, x + 1, x)


POISSON = Subject(
    "poisson(4.5)", "torch.poisson", lambda n, g: (torch.full((n,), 4.5),),
    {"torch": lambda n, g, a: (torch.poisson(a[0], generator=g),)},
    {
        **spoiled(lambda n, g, a: (torch.poisson(a[0], generator=g),), ANY),
        "rounded rate": lambda n, g, a: (torch.full((n,), 4.0),),
        "normal, rounded": lambda n, g, a: ((normals(n, g) * math.sqrt(4.5) + 4.5).round().clamp(min=0),),
        "rate 4.6": lambda n, g, a: (torch.poisson(a[0] + 0.1, generator=g),),
        "geometric of the same mean": lambda n, g, a: (_geometric_draw(1 / 5.5, n, g) - 1,),
    },
    {"binomial of 20": lambda n, g, a: (torch.binomial(torch.full((n,), 20.0), torch.full((n,), 0.225), generator=g),)},
)  # fmt: skip
POISSON_TENSOR = Subject(
    "poisson(tensor)", "torch.poisson", lambda n, g: (torch.rand(n, generator=g) * 20,),
    {"torch": lambda n, g, a: (torch.poisson(a[0], generator=g),)},
    {
        "rounded rate": lambda n, g, a: (a[0].round(),),
        "mean rate": lambda n, g, a: (torch.poisson(a[0].mean().expand(n), generator=g),),
        "rate of another element": lambda n, g, a: (torch.poisson(a[0].roll(1), generator=g),),
        "normal, rounded": lambda n, g, a: ((normals(n, g) * a[0].sqrt() + a[0]).round().clamp(min=0),),
        "rates cut at 16": lambda n, g, a: (torch.poisson(a[0].clamp(max=16), generator=g),),
    },
    {"deviation of 0.9": lambda n, g, a: ((torch.poisson(a[0], generator=g) * 0.9 + a[0] * 0.1).round(),)},
)  # fmt: skip
BINOMIAL = Subject(
    "binomial(10, 0.3)", "torch.binomial", lambda n, g: (torch.full((n,), 10.0), torch.full((n,), 0.3)),
    {"torch": lambda n, g, a: (torch.binomial(a[0], a[1], generator=g),)},
    {
        "p 0.32": lambda n, g, a: (torch.binomial(a[0], a[1] + 0.02, generator=g),),
        "Poisson of the same mean": lambda n, g, a: (torch.poisson(a[0] * a[1], generator=g).clamp(max=10),),
        "rounded mean": lambda n, g, a: ((a[0] * a[1]).round(),),
        "count 9": lambda n, g, a: (torch.binomial(a[0] - 1, a[1] / 0.9, generator=g),),
        "normal, rounded": lambda n, g, a: ((normals(n, g) * math.sqrt(2.1) + 3).round().clamp(0, 10),),
        "sorted": lambda n, g, a: (torch.binomial(a[0], a[1], generator=g).sort().values,),
    },
)  # fmt: skip


def _ints(high: int, n: int, g: Generator) -> Tensor:
    return torch.randint(high, (n,), generator=g)


RANDINT = Subject(
    "randint(10)", "torch.randint", lambda n, g: (10, (n,)),
    {"torch": lambda n, g, a: (_ints(10, n, g),)},
    {
        **spoiled(lambda n, g, a: (_ints(10, n, g),), ANY),
        "10 included": lambda n, g, a: (_ints(11, n, g),),
        "9 left out": lambda n, g, a: (_ints(9, n, g),),
        "rounded instead of cut": lambda n, g, a: ((uniforms(n, g) * 9).round().long(),),
        "16 values modulo 10": lambda n, g, a: (_ints(16, n, g) % 10,),
        "5 for 3": lambda n, g, a: (torch.where(_ints(10, n, g) == 3, 5, _ints(10, n, g)),),
    },
)  # fmt: skip
RANDINT_WIDE = Subject(
    "randint(0, 50000)", "torch.randint", lambda n, g: (0, 50000, (n,)),
    {"torch": lambda n, g, a: (_ints(50000, n, g),)},
    {
        "even only": lambda n, g, a: (_ints(25000, n, g) * 2,),
        "65536 modulo 50000": lambda n, g, a: (_ints(65536, n, g) % 50000,),
        "of 12 bits": lambda n, g, a: (_ints(4096, n, g) * 50000 // 4096,),
        "below 32768": lambda n, g, a: (_ints(32768, n, g),),
        "counted": lambda n, g, a: (torch.arange(n) % 50000,),
        "sorted": lambda n, g, a: (_ints(50000, n, g).sort().values,),
        "repeated block": lambda n, g, a: (_ints(50000, max(1, n // 4), g).repeat(5)[:n],),
    },
    {"bit 3 stuck": lambda n, g, a: ((_ints(50000, n, g) | 8).clamp(max=49999),)},
)  # fmt: skip
RANDOM_FULL = Subject(
    "random_() int32", "aten.random_.default", lambda n, g: (torch.zeros(n, dtype=torch.int32),),
    {"torch": lambda n, g, a: (torch.zeros(n, dtype=torch.int32).random_(generator=g),)},
    {
        "16 bits": lambda n, g, a: (_ints(65536, n, g).int(),),
        "lowest bit stuck": lambda n, g, a: ((_ints(1 << 31, n, g) | 1).int(),),
        "from float32": lambda n, g, a: ((_ints(1 << 24, n, g) << 7).int(),),
    },
)  # fmt: skip


# Permutations and picks


def _partly_shuffled(n: int, g: Generator) -> Tensor:
    """Only the first half is shuffled."""
    half = n // 2
    return torch.cat([torch.randperm(half, generator=g), torch.arange(half, n)])


def _blocks_shuffled(n: int, g: Generator) -> Tensor:
    """Shuffled within blocks of 1,024."""
    blocks = [start + torch.randperm(min(1024, n - start), generator=g) for start in range(0, n, 1024)]
    return torch.cat(blocks)


def _block_order(n: int, g: Generator) -> Tensor:
    """Whole blocks of 64 in another order."""
    order = torch.randperm(-(-n // 64), generator=g)
    found = (order[:, None] * 64 + torch.arange(64)).view(-1)
    return found[found < n]


def _affine(n: int, g: Generator) -> Tensor:
    step = next(s for s in range(n // 3 + 1, n) if math.gcd(s, n) == 1)
    return (torch.arange(n) * step + int(torch.randint(n, (), generator=g))) % n


def _swaps(n: int, g: Generator) -> Tensor:
    """As many swaps of two as a tenth of the elements."""
    x = torch.arange(n)
    chosen = torch.randperm(n, generator=g)[: n // 10 * 2].view(-1, 2)
    x[chosen[:, 0]], x[chosen[:, 1]] = chosen[:, 1], chosen[:, 0]
    return x


RANDPERM = Subject(
    "randperm", "torch.randperm", lambda n, g: (n,),
    {"torch": lambda n, g, a: (torch.randperm(n, generator=g),), "argsort": lambda n, g, a: (uniforms(n, g, 53).argsort(),)},
    {
        "in order": lambda n, g, a: (torch.arange(n),),
        "reversed": lambda n, g, a: (torch.arange(n).flip(0),),
        "rotated": lambda n, g, a: (torch.arange(n).roll(int(torch.randint(1, n, (), generator=g))),),
        "first half only": lambda n, g, a: (_partly_shuffled(n, g),),
        "within blocks": lambda n, g, a: (_blocks_shuffled(n, g),) if n > 1024 else (torch.arange(n),),
        "blocks of 64": lambda n, g, a: (_block_order(n, g),),
        "affine": lambda n, g, a: (_affine(n, g),),
        "few swaps": lambda n, g, a: (_swaps(n, g),),
        "one number twice": lambda n, g, a: (torch.randperm(n, generator=g).clamp(min=1),),
        "riffle": lambda n, g, a: (torch.arange(n).view(-1) if n % 2 else torch.arange(n).view(2, -1).t().reshape(-1),),
    },
    {
        "one riffle at random": lambda n, g, a: ((torch.rand(n, generator=g) < 0.5).long().argsort(stable=True),),
        "first in front": lambda n, g, a: (_with_first(torch.randperm(n, generator=g)),),
        "noise of 10 %": lambda n, g, a: ((torch.arange(n) + uniforms(n, g) * 0.1 * n).argsort(),),
        "pairs kept": lambda n, g, a: ((torch.randperm(n // 2, generator=g)[:, None] * 2 + torch.arange(2)).view(-1),),
    },
)  # fmt: skip


def _with_first(order: Tensor) -> Tensor:
    """The low quarter before the others, each part in random order."""
    return torch.cat([order[order < order.numel() // 4], order[order >= order.numel() // 4]])


WEIGHTS = torch.tensor([0.0, 1.0, 2.0, 5.0, 1.0, 0.5, 3.0, 2.5])


def _multinomial(weights: Tensor) -> Variant:
    return lambda n, g, a: (torch.multinomial(weights, n, True, generator=g),)


MULTINOMIAL = Subject(
    "multinomial, replacement", "torch.multinomial", lambda n, g: (WEIGHTS, n, True),
    {"torch": _multinomial(WEIGHTS)},
    {
        **spoiled(_multinomial(WEIGHTS), {name: ANY[name] for name in ("repeated block", "sorted", "pairs equal")}),
        "uniform": _multinomial(torch.ones(8)),
        "uniform where not 0": _multinomial((WEIGHTS > 0).float()),
        "weights squared": _multinomial(WEIGHTS**2),
        "shifted by one": lambda n, g, a: ((torch.multinomial(WEIGHTS, n, True, generator=g) + 1) % 8,),
        "always the largest": lambda n, g, a: (torch.full((n,), 3),),
        "softmax of weights": _multinomial(WEIGHTS.softmax(0)),
        "one weight off by 10 %": _multinomial(WEIGHTS * torch.tensor([1, 1, 1, 1.1, 1, 1, 1, 1])),
    },
    {"last category missing": _multinomial(WEIGHTS * torch.tensor([1.0] * 7 + [0.0]))},
)  # fmt: skip


def _rows(n: int, g: Generator) -> tuple[Any, ...]:
    return torch.rand(max(1, n // 4), 20, generator=g), 4, False


def _first_by_weight(weights: Tensor, g: Generator) -> Tensor:
    """The first pick by weight, the others without."""
    first = torch.multinomial(weights, 1, generator=g)
    rest = torch.multinomial(torch.ones_like(weights).scatter_(1, first, 0.0), 3, generator=g)
    return torch.cat([first, rest], 1)


PICKS = Subject(
    "multinomial, rows without replacement", "torch.multinomial", _rows,
    {
        "torch": lambda n, g, a: (torch.multinomial(a[0], 4, generator=g),),
        "race": lambda n, g, a: ((a[0] / torch.empty_like(a[0]).exponential_(generator=g)).topk(4, 1).indices,),
    },
    {
        "weights ignored": lambda n, g, a: (torch.multinomial(torch.ones_like(a[0]), 4, generator=g),),
        "largest weights": lambda n, g, a: (a[0].topk(4, 1).indices,),
        "only the first by weight": lambda n, g, a: (_first_by_weight(a[0], g),),
        "in order of index": lambda n, g, a: (torch.multinomial(a[0], 4, generator=g).sort(1).values,),
        "one row for all": lambda n, g, a: (torch.multinomial(a[0][:1].expand_as(a[0]), 4, generator=g),),
        "with replacement": lambda n, g, a: (torch.multinomial(a[0], 4, True, generator=g),),
    },
    {"weights of the next row": lambda n, g, a: (torch.multinomial(a[0].roll(1, 0), 4, generator=g),)},
)  # fmt: skip
ONE_ROW = Subject(
    "multinomial, one row without replacement", "torch.multinomial",
    lambda n, g: (torch.rand(2 * n, generator=g) + 0.1, n, False),
    {"torch": lambda n, g, a: (torch.multinomial(a[0], n, generator=g),)},
    {
        "weights ignored": lambda n, g, a: (torch.randperm(2 * n, generator=g)[:n],),
        "largest weights": lambda n, g, a: (a[0].topk(n).indices,),
        "first half only": lambda n, g, a: (torch.randperm(n, generator=g),),
        "sorted": lambda n, g, a: (torch.multinomial(a[0], n, generator=g).sort().values,),
    },
)  # fmt: skip


# Masks


def _input(p: float) -> Any:
    return lambda n, g: (torch.randn(n, generator=g), p, True)


def _masked(a: tuple[Any, ...], keep: Tensor, scale: float | None = None) -> Results:
    x, p = a[0], a[1]
    return torch.where(keep, x * (1 / (1 - p) if scale is None else scale), torch.zeros_like(x)), keep


def _divided(a: tuple[Any, ...], keep: Tensor) -> Results:
    return a[0] * keep / (1 - a[1]), keep


def _scaled_by_count(a: tuple[Any, ...], keep: Tensor) -> Results:
    return _masked(a, keep, 1 / float(keep.float().mean()))


def _inverted(a: tuple[Any, ...], keep: Tensor) -> Results:
    values, mask = _masked(a, keep)
    return values, ~mask


def _dropout(p: float) -> Subject:
    def kept(rate: float, scale: float | None = None) -> Variant:
        return lambda n, g, a: _masked(a, uniforms(n, g) >= rate, scale)

    def structured(pattern: Any) -> Variant:
        return lambda n, g, a: _masked(a, pattern(uniforms(n, g) >= p, g))

    return Subject(
        f"native_dropout({p})", "aten.native_dropout.default", _input(p),
        {
            "torch": kept(p),
            "divided": lambda n, g, a: _divided(a, uniforms(n, g) >= p),
        },
        {
            "rate + 0.02": kept(p + 0.02),
            "rate - 0.02": kept(p - 0.02),
            "1 - p": kept(1 - p) if p != 0.5 else kept(0.4),
            "not scaled": kept(p, 1.0),
            "scale off by 1 %": kept(p, 1.01 / (1 - p)),
            "scale 1 / p": kept(p, 1 / p) if p != 0.5 else kept(p, 1.5),
            "scaled for the drawn rate": lambda n, g, a: _scaled_by_count(a, uniforms(n, g) >= p + 0.003),
            "training ignored": lambda n, g, a: (a[0].clone(), torch.ones(n, dtype=torch.bool)),
            "everything dropped": lambda n, g, a: (torch.zeros(n), torch.zeros(n, dtype=torch.bool)),
            "mask inverted": lambda n, g, a: _inverted(a, uniforms(n, g) >= p),
            "one kept value changed": lambda n, g, a: _one_changed(_masked(a, uniforms(n, g) >= p)),
            "one NaN": lambda n, g, a: _one_changed(_masked(a, uniforms(n, g) >= p), math.nan),
            "pairs alike": structured(lambda keep, g: keep[::2].repeat_interleave(2)[: keep.numel()]),
            "rows alike": structured(lambda keep, g: keep[:64].repeat(-(-keep.numel() // 64))[: keep.numel()]),
            "second half as the first": structured(
                lambda keep, g: keep[: (keep.numel() + 1) // 2].repeat(2)[: keep.numel()]),
            "sorted mask": structured(lambda keep, g: keep.int().sort().values.bool()),
            "regular mask": structured(lambda keep, g: (torch.arange(keep.numel()) * p) % 1 >= p),
            "constant lane": structured(lambda keep, g: keep | (torch.arange(keep.numel()) % 32 == 5)),
            "tail not dropped": structured(lambda keep, g: keep | (torch.arange(keep.numel()) >= 0.9 * keep.numel())),
        },
        {
            "rows in pairs": structured(
                lambda keep, g: keep[: keep.numel() // 100 * 100].view(-1, 100)[::2].repeat_interleave(2, 0).view(-1)[
                    : keep.numel()].repeat(2)[: keep.numel()]),
            "four alike": structured(lambda keep, g: keep[::4].repeat_interleave(4)[: keep.numel()]),
            "largest values kept": lambda n, g, a: _masked(a, (uniforms(n, g) >= p) | (a[0] > 2)),
            "scale in bfloat16": lambda n, g, a: _masked(
                a, uniforms(n, g) >= p, float(torch.tensor(1.005 / (1 - p)).bfloat16())),
        },
    )  # fmt: skip


def _one_changed(drawn: Results, value: float | None = None) -> Results:
    values, mask = drawn[0].clone(), drawn[1]
    index = int(values.abs().argmax())
    values[index] = values[index] * 1.001 if value is None else value
    return values, mask


RRELU = Subject(
    "rrelu", "torch.nn.functional.rrelu", lambda n, g: (torch.randn(n, generator=g), 0.1, 0.3, True),
    {"formula": lambda n, g, a: (torch.where(a[0] < 0, a[0] * (0.1 + 0.2 * uniforms(n, g)).float(), a[0]),)},
    {
        "one slope": lambda n, g, a: (torch.where(a[0] < 0, a[0] * 0.2, a[0]),),
        "slopes 0.1 to 0.29": lambda n, g, a: (
            torch.where(a[0] < 0, a[0] * (0.1 + 0.19 * uniforms(n, g)).float(), a[0]),),
        "default slopes": lambda n, g, a: (torch.where(a[0] < 0, a[0] * (1 / 8 + uniforms(n, g) * 5 / 24).float(), a[0]),),
        "positive values too": lambda n, g, a: (a[0] * (0.1 + 0.2 * uniforms(n, g)).float(),),
        "one slope a row": lambda n, g, a: (
            torch.where(a[0] < 0, a[0] * (0.1 + 0.2 * uniforms(-(-n // 64), g)).float().repeat_interleave(64)[:n], a[0]),),
    },
    {"slopes of 3 bits": lambda n, g, a: (torch.where(a[0] < 0, a[0] * (0.1 + 0.2 * uniforms(n, g, 3)).float(), a[0]),)},
)  # fmt: skip

_ALPHA = -1.7580993408473766


def _alpha(x: Tensor, keep: Tensor, p: float, scale: float | None = None) -> Tensor:
    a = 1 / math.sqrt((1 - p) * (1 + p * _ALPHA * _ALPHA)) if scale is None else scale
    return torch.where(keep, x, torch.full_like(x, _ALPHA)) * a - a * p * _ALPHA


ALPHA_DROPOUT = Subject(
    "alpha_dropout(0.2)", "torch.nn.functional.alpha_dropout", _input(0.2),
    {"formula": lambda n, g, a: (_alpha(a[0], uniforms(n, g) >= 0.2, 0.2),)},
    {
        "plain dropout": lambda n, g, a: (_masked(a, uniforms(n, g) >= 0.2)[0],),
        "rate 0.22": lambda n, g, a: (_alpha(a[0], uniforms(n, g) >= 0.22, 0.2),),
        "scale off by 1 %": lambda n, g, a: (
            _alpha(a[0], uniforms(n, g) >= 0.2, 0.2, 1.01 / math.sqrt(0.8 * (1 + 0.2 * _ALPHA**2))),),
        "no shift": lambda n, g, a: (_alpha(a[0], uniforms(n, g) >= 0.2, 0.2) + 0.01,),
        "training ignored": lambda n, g, a: (a[0].clone(),),
    },
)  # fmt: skip


def _images(n: int, g: Generator) -> tuple[Any, ...]:
    return torch.randn(max(1, n // 64), 16, 2, 2, generator=g), 0.4, True


CHANNELS = Subject(
    "dropout2d(0.4)", "torch.nn.functional.dropout2d", _images,
    {"formula": lambda n, g, a: (a[0] * (torch.rand(*a[0].shape[:2], 1, 1, generator=g) >= 0.4) / 0.6,)},
    {
        "elements": lambda n, g, a: (a[0] * (torch.rand(a[0].shape, generator=g) >= 0.4) / 0.6,),
        "samples": lambda n, g, a: (a[0] * (torch.rand(a[0].shape[0], 1, 1, 1, generator=g) >= 0.4) / 0.6,),
        "one mask for all samples": lambda n, g, a: (a[0] * (torch.rand(1, 16, 1, 1, generator=g) >= 0.4) / 0.6,),
        "not scaled": lambda n, g, a: (a[0] * (torch.rand(*a[0].shape[:2], 1, 1, generator=g) >= 0.4),),
        "training ignored": lambda n, g, a: (functional.dropout2d(a[0], 0.4, False),),
    },
)  # fmt: skip

DISCRETE = [
    BERNOULLI, BERNOULLI_TENSOR, BERNOULLI_GROUPS, GEOMETRIC, POISSON, POISSON_TENSOR, BINOMIAL, RANDINT, RANDINT_WIDE,
    RANDOM_FULL, RANDPERM, MULTINOMIAL, PICKS, ONE_ROW, _dropout(0.1), _dropout(0.5), RRELU, ALPHA_DROPOUT, CHANNELS,
]  # fmt: skip
