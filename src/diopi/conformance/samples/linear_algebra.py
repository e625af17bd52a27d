"""Samples of matrix products, factorisations and distances."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, samples


@samples("diopiMm")
def mm(make: Maker) -> Iterator[Sample]:
    for n, k, m in ((3, 4, 5), (1, 7, 1), (5, 1, 3), (0, 4, 2), (3, 0, 2), (33, 65, 17), (19, 300, 9)):
        yield {"input": make(n, k), "mat2": make(k, m)}


@samples("diopiBmm")
def bmm(make: Maker) -> Iterator[Sample]:
    for b, n, k, m in ((2, 3, 4, 5), (1, 1, 7, 1), (0, 2, 3, 2), (3, 2, 0, 2), (4, 17, 33, 9), (13, 5, 3, 7)):
        yield {"input": make(b, n, k), "mat2": make(b, k, m)}


def _scales(make: Maker) -> list[tuple[float, float]]:
    """Of the input and of the product; an input that counts nothing may hold anything."""
    return [(1, 1), (0, 1), (1, 0), (0.5, -2.0), (-1.5, 0.25)] if make.floating else [(1, 1), (0, 1), (2, 3)]


@samples("diopiAddmm")
def addmm(make: Maker) -> Iterator[Sample]:
    for beta, alpha in _scales(make):
        yield {"input": make(3, 5), "mat1": make(3, 4), "mat2": make(4, 5), "beta": beta, "alpha": alpha}
    for shape in ((5,), (1, 5), (17, 1), ()):
        yield {"input": make(*shape), "mat1": make(17, 33), "mat2": make(33, 5), "beta": 1, "alpha": 1}
    yield {"input": make(3, 5), "mat1": make(3, 0), "mat2": make(0, 5), "beta": 2, "alpha": 1}


@samples("diopiBaddbmm")
def baddbmm(make: Maker) -> Iterator[Sample]:
    yield from baddbmm_in_place(make)
    for shape in ((5,), (2, 1, 5), (1, 3, 1)):
        batches = {"input": make(*shape), "batch1": make(2, 3, 4), "batch2": make(2, 4, 5)}
        yield {**batches, "beta": 1.0, "alpha": 2.0}


@samples("diopiBaddbmmInp")
def baddbmm_in_place(make: Maker) -> Iterator[Sample]:
    for beta, alpha in _scales(make):
        batches = {"batch1": make(2, 3, 4), "batch2": make(2, 4, 5)}
        yield {"input": make(2, 3, 5, written=True), **batches, "beta": float(beta), "alpha": float(alpha)}
    batches = {"batch1": make(3, 9, 35), "batch2": make(3, 35, 11)}
    yield {"input": make(3, 9, 11, written=True), **batches, "beta": 1.0, "alpha": 1.0}


_PRODUCTS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (4,)),
    ((3, 4), (2, 4, 5)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((17, 33), (33, 9)),
)


@samples("diopiMatmul")
def matmul(make: Maker) -> Iterator[Sample]:
    for one, other in (*_PRODUCTS, ((0, 4), (4, 2)), ((3, 0), (0, 2))):
        yield {"input": make(*one), "other": make(*other)}


@samples("diopiMatmulBackward")
def matmul_backward(make: Maker) -> Iterator[Sample]:
    for one, other in _PRODUCTS:
        shape = torch.matmul(torch.zeros(one), torch.zeros(other)).shape
        yield {"grad_out": make(*shape), "input": make(*one), "other": make(*other)}


@samples("diopiLinear")
def linear(make: Maker) -> Iterator[Sample]:
    for shape in ((3, 4), (4,), (2, 3, 4), (2, 1, 3, 4), (0, 4)):
        yield {"input": make(*shape), "weight": make(5, 4), "bias": make(5)}
    yield {"input": make(3, 4), "weight": make(5, 4)}
    yield {"input": make(2, 9, 35), "weight": make(11, 35), "bias": make(11)}


@samples("diopiLinearBackward")
def linear_backward(make: Maker) -> Iterator[Sample]:
    for shape in ((3, 4), (4,), (2, 3, 4), (2, 1, 3, 4), (1, 4)):
        yield {"grad_output": make(*shape[:-1], 5), "input": make(*shape), "weight": make(5, 4)}
    yield {"grad_output": make(2, 19, 11), "input": make(2, 19, 35), "weight": make(11, 35)}


# ---- factorisations ----


def _precise(make: Maker, values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.complex128 if make.dtype.is_complex else torch.float64)


def _positive(make: Maker, *batch: int, size: int) -> torch.Tensor:
    """Positive definite matrices."""
    root = _precise(make, make(*batch, size, size, low=-1, high=1))
    return root @ root.mH + torch.eye(size, dtype=root.dtype)


def _laid(make: Maker, values: torch.Tensor) -> torch.Tensor:
    """In the layout of the variation, but never with rows that share memory: a matrix would become singular."""
    return make.laid_out(values.to(make.dtype), written=True)


@samples("diopiCholesky")
def cholesky(make: Maker) -> Iterator[Sample]:
    for batch, size, upper in (
        ((), 3, False),
        ((), 4, True),
        ((2,), 3, False),
        ((2, 3), 2, True),
        ((), 17, False),
    ):
        yield {"mat": _laid(make, _positive(make, *batch, size=size)), "upper": upper, "checkerror": False}
    yield {"mat": _laid(make, _positive(make, 2, size=3)), "upper": False, "checkerror": True}
    bad = torch.eye(3).repeat(2, 1, 1)
    bad[1, 1, 1] = -1
    yield {"out": make.out(2, 3, 3), "mat": _laid(make, bad), "upper": False, "checkerror": False}


@samples("diopiCholeskyBackward")
def cholesky_backward(make: Maker) -> Iterator[Sample]:
    for batch, size, upper in (
        ((), 3, False),
        ((), 4, True),
        ((2,), 3, False),
        ((2, 2), 2, True),
        ((), 7, False),
    ):
        factor = torch.linalg.cholesky(_positive(make, *batch, size=size), upper=upper)
        yield {"grad_output": make(*batch, size, size), "L": _laid(make, factor), "upper": upper}


def _triangle(make: Maker, *batch: int, size: int) -> torch.Tensor:
    """Matrices whose both triangles, and those with ones on the diagonal, are far from singular."""
    values = _precise(make, make(*batch, size, size, low=-0.4, high=0.4))
    return values + 1.5 * torch.eye(size, dtype=values.dtype)


_SYSTEMS: tuple[tuple[tuple[int, ...], tuple[int, ...], bool, bool, bool], ...] = (
    ((3, 2), (3, 3), True, False, False),
    ((4, 1), (4, 4), False, False, False),
    ((3, 2), (3, 3), True, True, False),
    ((2, 3, 2), (2, 3, 3), False, True, True),
    ((3, 2), (2, 3, 3), True, False, True),
    ((2, 1, 3, 2), (4, 3, 3), False, False, False),
    ((11, 5), (11, 11), True, False, False),
)


def _flags(upper: bool, transpose: bool, unit: bool) -> Sample:
    return {"upper": upper, "transpose": transpose, "unitriangular": unit}


@samples("diopiTriangularSolve")
def triangular_solve(make: Maker) -> Iterator[Sample]:
    for right, left, *flags in _SYSTEMS:
        mat = _laid(make, _triangle(make, *left[:-2], size=left[-1]))
        yield {"b": make(*right, low=-1, high=1), "mat": mat, **_flags(*flags)}


@samples("diopiTriangularSolveBackward")
def triangular_solve_backward(make: Maker) -> Iterator[Sample]:
    for number, (right, left, upper, transpose, unit) in enumerate(_SYSTEMS):
        mat = _laid(make, _triangle(make, *left[:-2], size=left[-1]))
        b = make(*right, low=-1, high=1)
        given, rhs = _precise(make, mat), _precise(make, b)
        batch = torch.broadcast_shapes(b.shape[:-2], mat.shape[:-2])
        system, is_upper = (given.mT, not upper) if transpose else (given, upper)
        x = torch.linalg.solve_triangular(system, rhs, upper=is_upper, unitriangular=unit)
        sample = {"x": _laid(make, x), "b": b, "mat": mat, **_flags(upper, transpose, unit)}
        if number != 1:
            sample["grad_x"] = make(*batch, *right[-2:])
        if number % 2:
            sample["grad_cloned_mat"] = make(*batch, *left[-2:])
        yield sample


@samples("diopiLinalgQR")
def qr(make: Maker) -> Iterator[Sample]:
    shapes = (
        ((4, 3), "reduced"),
        ((3, 4), "reduced"),
        ((2, 4, 3), "complete"),
        ((4, 3), "r"),
        ((13, 7), "reduced"),
    )
    for (*batch, rows, columns), mode in shapes:
        values = _precise(make, make(*batch, rows, columns, low=-1, high=1))
        strong = values + 2 * torch.eye(rows, columns, dtype=values.dtype)
        yield {"A": _laid(make, strong), "mode": mode}


# ---- distances ----

_POINTS: tuple[tuple[tuple[int, ...], tuple[int, ...], float, int | None], ...] = (
    ((3, 4), (5, 4), 2.0, None),
    ((3, 4), (5, 4), 1.0, None),
    ((2, 3, 4), (2, 5, 4), float("inf"), None),
    ((3, 4), (2, 5, 4), 3.0, None),
    ((2, 1, 3, 4), (5, 2, 4), 0.0, 2),
    ((3, 6), (4, 6), 1.5, 0),
    ((3, 6), (4, 6), 2.0, 1),
    ((29, 7), (31, 7), 2.0, 2),
    ((29, 7), (31, 7), 2.0, 0),
)


@samples("diopiCdist")
def cdist(make: Maker) -> Iterator[Sample]:
    for one, other, p, mode in (*_POINTS, ((0, 4), (3, 4), 2.0, None)):
        sample = {"input1": make(*one), "input2": make(*other), "p": p}
        yield sample if mode is None else {**sample, "compute_mode": mode}


@samples("diopiCdistBackward")
def cdist_backward(make: Maker) -> Iterator[Sample]:
    for one, other, p, _ in _POINTS:
        input1, input2 = make(*one), make(*other)
        far = torch.cdist(input1.double(), input2.double(), p)
        sample = {"input1": input1, "input2": input2, "p": p, "cdist": _laid(make, far)}
        yield {**sample, "grad_output": make(*far.shape)}
        if p == 3.0:  # in the batch shape that both have together, as PyTorch asks for it
            yield {**sample, "grad_output": make(*far.shape), "grad_input": make.out(2, 3, 4)}


@samples("diopiPolar")
def polar(make: Maker) -> Iterator[Sample]:
    if make.dtype.itemsize < 4:
        return  # a complex half dtype is not among the documented dtypes
    for one, other in (((3, 4), (3, 4)), ((), ()), ((2, 1), (5,)), ((0, 2), (0, 2)), ((45, 111), (45, 111))):
        yield {"abs": make(*one, low=0, high=5), "angle": make(*other, low=-7, high=7)}
