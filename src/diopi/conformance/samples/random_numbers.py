"""Samples of random numbers. Most have some thousand elements, so that a wrong distribution shows."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, samples, table
from diopi.conformance.samples.elementwise import both_forms, operand, written

# The largest count of numbers that every number of a dtype can tell apart.
_COUNTED = {torch.int8: 127, torch.uint8: 255, torch.bfloat16: 256, torch.float16: 2048}


# A rate that is off by 0.01 is four standard deviations away at this number of draws.
_MANY = 40_009


table("diopiBernoulliScalar", "out p generator", ((_MANY,), 0.5, Maker.seed), ((_MANY,), 0.3, Maker.seed))
table(
    "diopiUniformInp",
    "inout from to generator",
    ((61, 53), 0.0, 1.0, Maker.seed),
    ((31, 101), -2.5, 4.0, Maker.seed),
    ((7, 3, 5, 11), 10.0, 30.0, Maker.seed),
    ((2003,), -1.0, -0.5, Maker.seed),
    ((), 0.0, 1.0, Maker.seed),
    ((0, 3), 0.0, 1.0, Maker.seed),
)

_NORMALS = (
    ((61, 53), 0.0, 1.0, Maker.seed),
    ((31, 101), -2.5, 4.0, Maker.seed),
    ((7, 3, 5, 11), 3.0, 0.5, Maker.seed),
    ((13,), 0.0, 1.0, Maker.seed),
    ((2003,), 1.0, 0.0, Maker.seed),
    ((), 0.0, 2.0, Maker.seed),
    ((0, 3), 0.0, 1.0, Maker.seed),
)
table("diopiNormal", "out mean std generator", *_NORMALS)
table("diopiNormalInp", "inout mean std generator", *_NORMALS)


@samples("diopiNormalTensorScalar")
def normal_of_means(make: Maker) -> Iterator[Sample]:
    for shape, std in (((61, 53), 1.0), ((7, 3, 5, 11), 4.0), ((13,), 0.25), ((), 1.0), ((0, 3), 1.0)):
        mean = make(*shape, low=-3, high=3)
        yield {"out": make(*shape, written=True), "mean": mean, "std": std, "generator": make.seed()}


@samples("diopiNormalScalarTensor")
def normal_of_deviations(make: Maker) -> Iterator[Sample]:
    for shape, mean in (((61, 53), 0.0), ((7, 3, 5, 11), -4.0), ((13,), 0.25), ((), 1.0), ((0, 3), 1.0)):
        std = make.positive(*shape)
        yield {"out": make(*shape, written=True), "mean": mean, "std": std, "generator": make.seed()}


@samples("diopiNormalTensor")
def normal_of_both(make: Maker) -> Iterator[Sample]:
    for means, deviations, out in (
        ((61, 53), (61, 53), (61, 53)),
        ((7, 3, 5, 11), (7, 3, 5, 11), (7, 3, 5, 11)),
        ((53,), (61, 1), (61, 53)),
        ((13,), (13,), (13,)),
        ((), (), ()),
        ((0, 3), (0, 3), (0, 3)),
    ):
        mean, std = make(*means, low=-3, high=3), make.positive(*deviations)
        yield {"out": make(*out, written=True), "mean": mean, "std": std, "generator": make.seed()}


@samples("diopiRandomInp")
def integers(make: Maker) -> Iterator[Sample]:
    most = 2 if make.dtype == torch.bool else 100
    for shape, low, high in (
        ((61, 53), 0, most),
        ((7, 3, 5, 11), 1 if most > 2 else 0, 13 if most > 2 else 2),
        ((2003,), 0, None),
        ((17, 31), 5 if most > 2 else 0, 6 if most > 2 else 1),
        ((0, 3), 0, most),
    ):
        yield {"inout": make(*shape, written=True), "from": low, "to": high, "generator": make.seed()}
    if make.dtype not in (torch.bool, torch.uint8):
        inout = make(41, 43, written=True)
        yield {"inout": inout, "from": -20, "to": 21, "generator": make.seed()}


@samples(*both_forms("diopiBernoulli"))
def bernoulli(make: Maker) -> Iterator[Sample]:
    for shape, low, high in (
        ((61, 53), 0.0, 1.0),
        ((7, 3, 5, 11), 0.25, 0.25),
        ((2003,), 0.9, 1.0),
        ((31, 101), 0.0, 0.1),
        ((17,), 1.0, 1.0),
        ((17,), 0.0, 0.0),
        ((0, 3), 0.0, 1.0),
    ):
        chances = operand(make, *shape, low=low, high=high)
        given = {"inout": chances} if written(make) else {"input": chances, "out": make(*shape, written=True)}
        yield {**given, "generator": make.seed()}


table(
    "diopiBernoulliScalar",
    "out p generator",
    ((61, 53), 0.5, Maker.seed),
    ((7, 3, 5, 11), 0.1, Maker.seed),
    ((2003,), 0.97, Maker.seed),
    ((17,), 1.0, Maker.seed),
    ((17,), 0.0, Maker.seed),
    ((0, 3), 0.5, Maker.seed),
)


@samples("diopiRandperm")
def permutation(make: Maker) -> Iterator[Sample]:
    for count in (101, 37, 2003, 1, 0):
        if count <= _COUNTED.get(make.dtype, count):
            yield {"out": make(count, written=True), "n": count, "generator": make.seed()}


@samples("diopiMultinomial")
def multinomial(make: Maker) -> Iterator[Sample]:
    for shape, count, replacement in (
        ((101,), 40, False),
        ((11,), 2003, True),
        ((7, 13), 5, False),
        ((7, 13), 301, True),
        ((40, 3), 3, False),
        ((2000, 5), 1, False),
    ):
        out = make.laid_out(make.out(*shape[:-1], count, dtype=torch.int64), written=True)
        how = {"num_samples": count, "replacement": replacement, "generator": make.seed()}
        yield {"out": out, "input": make.positive(*shape), **how}


@samples(*both_forms("diopiDropout"))
def dropout(make: Maker) -> Iterator[Sample]:
    for shape, noise, p, train in (
        ((61, 53), (61, 53), 0.5, True),
        ((7, 3, 5, 11), (7, 3, 5, 11), 0.1, True),
        ((2003,), (2003,), 0.97, True),
        ((31, 17), (31, 17), 0.5, False),
        ((19,), (19,), 0.0, True),
        ((19,), (19,), 1.0, True),
        ((31, 17, 2, 3), (31, 17, 1, 1), 0.4, True),
        ((0, 3), (0, 3), 0.5, True),
    ):
        sample = {"input": make.positive(*shape, written=written(make)), "p": p, "train": train}
        if not written(make):
            sample["out"] = make(*shape, written=True)
        yield {**sample, "mask": make.out(*noise, dtype=torch.bool), "generator": make.seed()}
