"""Samples of random numbers. Most have some thousand elements, so that a wrong distribution shows."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, samples

# The largest count of numbers that every number of a dtype can tell apart.
_COUNTED = {torch.int8: 127, torch.uint8: 255, torch.bfloat16: 256, torch.float16: 2048}


def _seed(make: Maker) -> int:
    """Another one than that of the sample's tensors: numbers drawn twice alike would never fall below each other."""
    return make.seed()


# A rate that is off by 0.01 is four standard deviations away at this number of draws.
_MANY = 40_009


@samples("diopiBernoulliScalar")
def many_draws_of_one_chance(make: Maker) -> Iterator[Sample]:
    """Enough of them to tell rates that are close to each other."""
    for p in (0.5, 0.3):
        yield {"out": make(_MANY, written=True), "p": p, "generator": make.seed()}


@samples("diopiUniformInp")
def uniform(make: Maker) -> Iterator[Sample]:
    for shape, low, high in (
        ((61, 53), 0.0, 1.0),
        ((31, 101), -2.5, 4.0),
        ((7, 3, 5, 11), 10.0, 30.0),
        ((2003,), -1.0, -0.5),
        ((), 0.0, 1.0),
        ((0, 3), 0.0, 1.0),
    ):
        yield {"inout": make(*shape, written=True), "from": low, "to": high, "generator": _seed(make)}


@samples("diopiNormalInp")
def normal_in_place(make: Maker) -> Iterator[Sample]:
    for shape, mean, std in _NORMALS:
        yield {"inout": make(*shape, written=True), "mean": mean, "std": std, "generator": _seed(make)}


@samples("diopiNormal")
def normal(make: Maker) -> Iterator[Sample]:
    for shape, mean, std in _NORMALS:
        yield {"out": make(*shape, written=True), "mean": mean, "std": std, "generator": _seed(make)}


_NORMALS: tuple[tuple[tuple[int, ...], float, float], ...] = (
    ((61, 53), 0.0, 1.0),
    ((31, 101), -2.5, 4.0),
    ((7, 3, 5, 11), 3.0, 0.5),
    ((13,), 0.0, 1.0),
    ((2003,), 1.0, 0.0),
    ((), 0.0, 2.0),
    ((0, 3), 0.0, 1.0),
)


@samples("diopiNormalTensorScalar")
def normal_of_means(make: Maker) -> Iterator[Sample]:
    for shape, std in (((61, 53), 1.0), ((7, 3, 5, 11), 4.0), ((13,), 0.25), ((), 1.0), ((0, 3), 1.0)):
        mean = make(*shape, low=-3, high=3)
        yield {"out": make(*shape, written=True), "mean": mean, "std": std, "generator": _seed(make)}


@samples("diopiNormalScalarTensor")
def normal_of_deviations(make: Maker) -> Iterator[Sample]:
    for shape, mean in (((61, 53), 0.0), ((7, 3, 5, 11), -4.0), ((13,), 0.25), ((), 1.0), ((0, 3), 1.0)):
        std = make.positive(*shape)
        yield {"out": make(*shape, written=True), "mean": mean, "std": std, "generator": _seed(make)}


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
        yield {"out": make(*out, written=True), "mean": mean, "std": std, "generator": _seed(make)}


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
        yield {"inout": make(*shape, written=True), "from": low, "to": high, "generator": _seed(make)}
    if make.dtype not in (torch.bool, torch.uint8):
        inout = make(41, 43, written=True)
        yield {"inout": inout, "from": -20, "to": 21, "generator": _seed(make)}


@samples("diopiBernoulli")
def bernoulli(make: Maker) -> Iterator[Sample]:
    for shape, low, high in _CHANCES:
        source = make(*shape, low=low, high=high)
        yield {"out": make(*shape, written=True), "input": source, "generator": _seed(make)}


@samples("diopiBernoulliInp")
def bernoulli_in_place(make: Maker) -> Iterator[Sample]:
    for shape, low, high in _CHANCES:
        yield {"inout": make(*shape, low=low, high=high, written=True), "generator": _seed(make)}


_CHANCES: tuple[tuple[tuple[int, ...], float, float], ...] = (
    ((61, 53), 0.0, 1.0),
    ((7, 3, 5, 11), 0.25, 0.25),
    ((2003,), 0.9, 1.0),
    ((31, 101), 0.0, 0.1),
    ((17,), 1.0, 1.0),
    ((17,), 0.0, 0.0),
    ((0, 3), 0.0, 1.0),
)


@samples("diopiBernoulliScalar")
def bernoulli_of_one_chance(make: Maker) -> Iterator[Sample]:
    for shape, p in (
        ((61, 53), 0.5),
        ((7, 3, 5, 11), 0.1),
        ((2003,), 0.97),
        ((17,), 1.0),
        ((17,), 0.0),
        ((0, 3), 0.5),
    ):
        yield {"out": make(*shape, written=True), "p": p, "generator": _seed(make)}


@samples("diopiRandperm")
def permutation(make: Maker) -> Iterator[Sample]:
    for count in (101, 37, 2003, 1, 0):
        if count <= _COUNTED.get(make.dtype, count):
            yield {"out": make(count, written=True), "n": count, "generator": _seed(make)}


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
        weights = make.positive(*shape)
        yield {
            "out": out,
            "input": weights,
            "num_samples": count,
            "replacement": replacement,
            "generator": _seed(make),
        }


@samples("diopiDropout")
def dropout(make: Maker) -> Iterator[Sample]:
    for shape, noise, p, train in _DROPPED:
        source, out = make.positive(*shape), make(*shape, written=True)
        mask = make.out(*noise, dtype=torch.bool)
        yield {"out": out, "mask": mask, "input": source, "p": p, "train": train, "generator": _seed(make)}


@samples("diopiDropoutInp")
def dropout_in_place(make: Maker) -> Iterator[Sample]:
    for shape, noise, p, train in _DROPPED:
        source, mask = make.positive(*shape, written=True), make.out(*noise, dtype=torch.bool)
        yield {"input": source, "mask": mask, "p": p, "train": train, "generator": _seed(make)}


_DROPPED: tuple[tuple[tuple[int, ...], tuple[int, ...], float, bool], ...] = (
    ((61, 53), (61, 53), 0.5, True),
    ((7, 3, 5, 11), (7, 3, 5, 11), 0.1, True),
    ((2003,), (2003,), 0.97, True),
    ((31, 17), (31, 17), 0.5, False),
    ((19,), (19,), 0.0, True),
    ((19,), (19,), 1.0, True),
    ((31, 17, 2, 3), (31, 17, 1, 1), 0.4, True),
    ((0, 3), (0, 3), 0.5, True),
)
