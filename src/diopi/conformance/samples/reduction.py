"""Samples of reductions, softmax and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from diopi.conformance.samples import Maker, Sample, samples, table


def _summed_dtype(make: Maker) -> torch.dtype:
    """What integers and booleans are added up in."""
    return make.dtype if make.floating else torch.int64


def _out(dtype: Callable[[Maker], torch.dtype], *shape: int) -> Callable[[Maker], torch.Tensor]:
    """What the caller allocates: its shape says whether the reduced dimensions stay."""
    return lambda make: make.out(*shape, dtype=dtype(make))


_sums, _reals, _booleans = (
    partial(_out, dtype) for dtype in (_summed_dtype, lambda make: make.real_dtype, lambda _: torch.bool)
)


table(
    "diopiSum",
    "input dim out",
    ((3, 4, 5), [1], _sums(3, 5)),
    ((3, 4, 5), [-1, 0], _sums(1, 4, 1)),
    ((7, 713), [], _sums()),
    ((7, 713), [0], _sums(1, 713)),
    ((), [], _sums()),
    ((0, 3), [0], _sums(3)),
)


@samples("diopiSum")
def sums_of_higher_precision(make: Maker) -> Iterator[Sample]:
    upcast = {torch.float16: torch.float32, torch.float32: torch.float64}.get(make.dtype)
    if upcast is not None:
        yield {"input": make(3, 19), "dim": [1], "out": make.out(3, dtype=upcast)}


table(
    "diopiMean",
    "input dim out",
    ((3, 4, 5), [1], _sums(3, 5)),
    ((3, 4, 5), [-1, 0], _sums(1, 4, 1)),
    ((7, 713), [], _sums()),
    ((713, 7), [0], _sums(1, 7)),
    ((), [], _sums()),
    ((0, 3), [0], _sums(3)),
)
table(
    "diopiStd",
    "input dim out correction",
    ((3, 4, 5), [1], _reals(3, 5)),
    ((3, 4, 5), [-1, 0], _reals(1, 4, 1), 0),
    ((7, 713), [], _reals(), 1),
    ((6, 11), [0], _reals(1, 11), 2),
)
table(
    "diopiProd",
    "input dim out",
    ((3, 4, 5), 1, _sums(3, 5)),
    ((3, 4, 5), -1, _sums(3, 4, 1)),
    ((3, 7), None, _sums()),
    (lambda make: make.positive(4, 33, low=0.8, high=1.2), 1, _sums(4)),
    ((2, 0), 1, _sums(2)),
    ((), 0, _sums()),
)
table(
    "diopiNorm",
    "input p dim out",
    ((3, 4, 5), 2.0, [1], _reals(3, 5)),
    ((3, 4, 5), 1.0, [-1, 0], _reals(1, 4, 1)),
    ((7, 713), 2, [], _reals()),
    ((6, 11), math.inf, [1], _reals(6)),
    ((6, 11), -math.inf, [1], _reals(6, 1)),
    ((6, 11), 0, [0], _reals(11)),
    ((6, 11), 3, [0, 1], _reals()),
)
table(
    "diopiLinalgVecNorm",
    "input ord dim keepdim out",
    ((3, 4, 5), 2, [1], False, _reals(3, 5)),
    ((3, 4, 5), 1, [-1, 0], True, _reals(1, 4, 1)),
    ((7, 713), 2.0, [], False, _reals()),
    ((6, 11), math.inf, [1], False, _reals(6)),
    ((6, 11), -math.inf, [-1], True, _reals(6, 1)),
    ((6, 11), 0, [0], False, _reals(11)),
    ((6, 11), 3.5, [], True, _reals(1, 1)),
)


@samples("diopiNormBackward")
def norm_gradients(make: Maker) -> Iterator[Sample]:
    cases: tuple[tuple[float, list[int], bool], ...] = (
        (2, [1], False),
        (2, [], False),
        (1, [0, 2], True),
        (3.0, [-1], True),
        (math.inf, [1], False),
        (0, [1], False),
    )
    for p, dim, keepdim in cases:
        x = make(3, 4, 5, low=-2, high=2)
        norm = torch.linalg.vector_norm(x, p, dim or None, keepdim)
        gradient = make(*norm.shape, low=-2, high=2, dtype=make.real_dtype)
        yield {"grad_output": gradient, "self": x, "norm": make.laid_out(norm), "dim": dim, "p": p}
    zeros = make.laid_out(torch.zeros(3, 4, dtype=make.dtype))
    gradient, norm = make(3, low=-2, high=2, dtype=make.real_dtype), torch.zeros(3, dtype=make.real_dtype)
    yield {"grad_output": gradient, "self": zeros, "norm": norm, "dim": [1], "p": 2}


_LISTED = [(5,), (2, 3, 4), (), (17, 19)]
table(
    "diopiForeachnormScalar",
    "inputs inputSize ord",
    *((_LISTED, 4, order) for order in (2, 1, math.inf, 3.0)),
    ([(3, 211)], 1, 2),
)
table(
    "diopiAmax",
    "self dim keepdim",
    ((3, 4, 5), [1], False),
    ((3, 4, 5), [-1, 0], True),
    ((7, 713), [], False),
    ((7, 713), [-2], True),
    ((), [], False),
)


@samples("diopiMax", "diopiMin")
def extremes_with_positions(make: Maker) -> Iterator[Sample]:
    value, indices = ("max", "max_indices") if make.function == "diopiMax" else ("min", "min_indices")
    for shape, dim, result in (
        ((3, 4, 5), 1, (3, 5)),
        ((3, 4, 5), -1, (3, 4, 1)),
        ((7, 713), 1, (7,)),
        ((713, 7), 0, (1, 7)),
        ((), 0, ()),
    ):
        outputs = {value: make.out(*result), indices: make.out(*result, dtype=torch.int64)}
        yield {"input": make(*shape), "dim": dim, **outputs}


table("diopiMaxAll diopiMinAll", "input", ((3, 4, 5),), ((7, 713),), ((1,),), ((),))
table(
    "diopiArgmax diopiArgmin",
    "input keepdim dim",
    ((3, 4, 5), False, 1),
    ((3, 4, 5), True, -1),
    ((3, 4, 5), False),
    ((7, 713), False, 0),
    ((7, 713), False, 1),
    ((), False),
)


def _sparse(*shape: int) -> Callable[[Maker], torch.Tensor]:
    """Rows of zeros only, of none, and of some."""

    def sparse(make: Maker) -> torch.Tensor:
        values = make(*shape)
        chosen = (values != 0) & make.mask(*shape, rate=0.3)
        if values.dim() > 1:
            chosen[0] = False
            chosen[-1] = True
        return make.laid_out(torch.where(chosen, torch.ones_like(values), torch.zeros_like(values)))

    return sparse


table(
    "diopiAny diopiAll",
    "input dim out",
    (_sparse(5, 7), 1, _booleans(5)),
    (_sparse(5, 3, 4), -1, _booleans(5, 3, 1)),
    (_sparse(5, 7), None, _booleans()),
    ((7, 713), 0, _booleans(713)),
    ((0, 3), 0, _booleans(3)),
    ((), None, _booleans()),
)
table(
    "diopiCumsum",
    "input dim out",
    ((3, 4, 5), 1, _sums(3, 4, 5)),
    ((3, 4, 5), -1, _sums(3, 4, 5)),
    ((7, 713), 1, _sums(7, 713)),
    ((0, 3), 0, _sums(0, 3)),
    ((), 0, _sums()),
)
table("diopiCumsumBackward", "grad_output dim", ((3, 4, 5), 1), ((3, 4, 5), -1), ((7, 713), 0), ((), 0))
table(
    "diopiSoftmax diopiLogSoftmax",
    "input dim",
    *(((3, 4, 5), dim) for dim in (1, -1, 0)),
    *[((7, 713), 1), ((3, 1), 1), ((0, 3), 1), ((), 0)],
)


@samples("diopiSoftmaxBackward", "diopiLogSoftmaxBackward")
def softmax_gradients(make: Maker) -> Iterator[Sample]:
    forward = torch.softmax if make.function == "diopiSoftmaxBackward" else torch.log_softmax
    for shape, dim in (((3, 4, 5), 1), ((3, 4, 5), -1), ((5, 3, 2), 0), ((7, 311), 1), ((3, 1), 1)):
        output = forward(make(*shape, low=-4, high=4), dim)
        yield {"grad_output": make(*shape, low=-2, high=2), "output": make.laid_out(output), "dim": dim}
