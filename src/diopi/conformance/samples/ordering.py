"""Samples of selection by order: sorting, the largest, the different ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, samples, table

_SORTED: tuple[tuple[tuple[int, ...], int, bool], ...] = (
    ((3, 7), 1, False),
    ((3, 7), 0, True),
    ((2, 3, 4), -2, False),
    ((9,), 0, True),
    ((), 0, False),
    ((0, 3), 1, False),
    ((2, 3, 4, 5), 2, True),
    ((7, 501), -1, False),
)


@samples("diopiSort")
def sort(make: Maker) -> Iterator[Sample]:
    for number, (shape, dim, descending) in enumerate(_SORTED):
        stable = (None, True, False)[number % 3]
        yield {"input": make(*shape), "dim": dim, "descending": descending, "pStable": stable}
    ties = make.index(4, 33, high=3, dtype=make.dtype)
    yield {"input": ties, "dim": 1, "descending": True, "pStable": True}


@samples("diopiArgsort")
def argsort(make: Maker) -> Iterator[Sample]:
    for number, (shape, dim, descending) in enumerate(_SORTED):
        yield {"input": make(*shape), "stable": number % 2 == 0, "dim": dim, "descending": descending}
    yield {"input": make(4, 33), "stable": True, "dim": None, "descending": False}
    ties = make.index(4, 33, high=3, dtype=make.dtype)
    yield {"input": ties, "stable": True, "dim": 1, "descending": False}


@samples("diopiSortBackward")
def sort_backward(make: Maker) -> Iterator[Sample]:
    for rows, columns in ((3, 7), (1, 1), (5, 0), (13, 101)):
        indices = torch.stack([make.permutation(columns) for _ in range(rows)])
        of = {"dim": 1, "indices": indices, "sizes": [rows, columns], "keepdim": True}
        yield {"grad_output": make(rows, columns), **of}
    picked = make.index(5, high=7)
    yield {"grad_output": make(5), "dim": 1, "indices": picked, "sizes": [5, 7], "keepdim": False}
    picked = make.index(1, 4, high=6)
    yield {"grad_output": make(1, 4), "dim": -2, "indices": picked, "sizes": [6, 4], "keepdim": True}


table(
    "diopiTopk",
    "input k dim largest sorted",
    ((3, 7), 3, 1, True, True),
    ((3, 7), 2, 0, False, True),
    ((2, 3, 9), 9, -1, True, True),
    ((9,), 1, 0, False, False),
    ((), 1, 0, True, True),
    ((3, 5), 0, 1, True, True),
    ((7, 501), 20, -1, True, True),
    ((4, 6), 1, 1, True, False),
)


@samples("diopiUnique")
def unique(make: Maker) -> Iterator[Sample]:
    for shape, dim, ordered, counted, indexed in (
        ((7, 9), None, True, True, True),
        ((31,), None, True, False, False),
        ((4, 5, 3), None, True, False, True),
        ((40, 2), 0, True, True, True),
        ((2, 40), -1, True, False, True),
        ((), None, True, True, True),
        ((0,), None, True, True, True),
        ((71, 67), None, True, True, True),
    ):
        inverse = shape if dim is None else (shape[dim],)
        values = make.index(*shape, high=5, dtype=make.dtype)
        sample: Sample = {"input": values, "dim": dim, "sorted": ordered, "return_counts": counted}
        yield sample | ({"indices": make.out(*inverse, dtype=torch.int64)} if indexed else {})
    # without order only a single value has a position that is determined
    equal = make.laid_out(torch.ones(6, dtype=make.dtype))
    yield {"input": equal, "sorted": False, "return_counts": True, "indices": make.out(6, dtype=torch.int64)}
