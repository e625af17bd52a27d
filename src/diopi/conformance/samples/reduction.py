"""Samples of reductions, softmax and running sums."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, samples


def _summed_dtype(make: Maker) -> torch.dtype:
    """What integers and booleans are added up in."""
    return make.dtype if make.floating else torch.int64


@samples("diopiSum")
def sums(make: Maker) -> Iterator[Sample]:
    dtype = _summed_dtype(make)
    yield {"input": make(3, 4, 5), "dim": [1], "out": make.out(3, 5, dtype=dtype)}
    yield {"input": make(3, 4, 5), "dim": [-1, 0], "out": make.out(1, 4, 1, dtype=dtype)}
    yield {"input": make(7, 713), "dim": [], "out": make.out(dtype=dtype)}
    yield {"input": make(7, 713), "dim": [0], "out": make.out(1, 713, dtype=dtype)}
    yield {"input": make(), "dim": [], "out": make.out(dtype=dtype)}
    yield {"input": make(0, 3), "dim": [0], "out": make.out(3, dtype=dtype)}
    wider = {torch.float16: torch.float32, torch.float32: torch.float64}.get(make.dtype)
    if wider is not None:
        yield {"input": make(3, 19), "dim": [1], "out": make.out(3, dtype=wider)}


@samples("diopiMean")
def means(make: Maker) -> Iterator[Sample]:
    yield {"input": make(3, 4, 5), "dim": [1], "out": make.out(3, 5)}
    yield {"input": make(3, 4, 5), "dim": [-1, 0], "out": make.out(1, 4, 1)}
    yield {"input": make(7, 713), "dim": [], "out": make.out()}
    yield {"input": make(713, 7), "dim": [0], "out": make.out(1, 7)}
    yield {"input": make(), "dim": [], "out": make.out()}
    yield {"input": make(0, 3), "dim": [0], "out": make.out(3)}


@samples("diopiStd")
def deviations(make: Maker) -> Iterator[Sample]:
    real = make.real_dtype
    yield {"input": make(3, 4, 5), "dim": [1], "out": make.out(3, 5, dtype=real)}
    yield {"input": make(3, 4, 5), "dim": [-1, 0], "correction": 0, "out": make.out(1, 4, 1, dtype=real)}
    yield {"input": make(7, 713), "dim": [], "correction": 1, "out": make.out(dtype=real)}
    yield {"input": make(6, 11), "dim": [0], "correction": 2, "out": make.out(1, 11, dtype=real)}


@samples("diopiProd")
def products(make: Maker) -> Iterator[Sample]:
    dtype = _summed_dtype(make)
    yield {"input": make(3, 4, 5), "dim": 1, "out": make.out(3, 5, dtype=dtype)}
    yield {"input": make(3, 4, 5), "dim": -1, "out": make.out(3, 4, 1, dtype=dtype)}
    yield {"input": make(3, 7), "out": make.out(dtype=dtype)}
    yield {"input": make.positive(4, 33, low=0.8, high=1.2), "dim": 1, "out": make.out(4, dtype=dtype)}
    yield {"input": make(2, 0), "dim": 1, "out": make.out(2, dtype=dtype)}
    yield {"input": make(), "dim": 0, "out": make.out(dtype=dtype)}


@samples("diopiNorm")
def norms(make: Maker) -> Iterator[Sample]:
    real = make.real_dtype
    yield {"input": make(3, 4, 5), "dim": [1], "p": 2.0, "out": make.out(3, 5, dtype=real)}
    yield {"input": make(3, 4, 5), "dim": [-1, 0], "p": 1.0, "out": make.out(1, 4, 1, dtype=real)}
    yield {"input": make(7, 713), "dim": [], "p": 2, "out": make.out(dtype=real)}
    yield {"input": make(6, 11), "dim": [1], "p": math.inf, "out": make.out(6, dtype=real)}
    yield {"input": make(6, 11), "dim": [1], "p": -math.inf, "out": make.out(6, 1, dtype=real)}
    yield {"input": make(6, 11), "dim": [0], "p": 0, "out": make.out(11, dtype=real)}
    yield {"input": make(6, 11), "dim": [0, 1], "p": 3, "out": make.out(dtype=real)}


@samples("diopiLinalgVecNorm")
def vector_norms(make: Maker) -> Iterator[Sample]:
    real = make.real_dtype
    yield {"input": make(3, 4, 5), "ord": 2, "dim": [1], "keepdim": False, "out": make.out(3, 5, dtype=real)}
    yield {
        "input": make(3, 4, 5),
        "ord": 1,
        "dim": [-1, 0],
        "keepdim": True,
        "out": make.out(1, 4, 1, dtype=real),
    }
    yield {"input": make(7, 713), "ord": 2.0, "dim": [], "keepdim": False, "out": make.out(dtype=real)}
    yield {
        "input": make(6, 11),
        "ord": math.inf,
        "dim": [1],
        "keepdim": False,
        "out": make.out(6, dtype=real),
    }
    yield {
        "input": make(6, 11),
        "ord": -math.inf,
        "dim": [-1],
        "keepdim": True,
        "out": make.out(6, 1, dtype=real),
    }
    yield {"input": make(6, 11), "ord": 0, "dim": [0], "keepdim": False, "out": make.out(11, dtype=real)}
    yield {"input": make(6, 11), "ord": 3.5, "dim": [], "keepdim": True, "out": make.out(1, 1, dtype=real)}


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
    zeros = torch.zeros(3, 4, dtype=make.dtype)
    yield {
        "grad_output": make(3, low=-2, high=2, dtype=make.real_dtype),
        "self": make.laid_out(zeros),
        "norm": torch.zeros(3, dtype=make.real_dtype),
        "dim": [1],
        "p": 2,
    }


@samples("diopiForeachnormScalar")
def foreach_norms(make: Maker) -> Iterator[Sample]:
    for order in (2, 1, math.inf, 3.0):
        inputs = [make(5), make(2, 3, 4), make(), make(17, 19)]
        yield {"inputs": inputs, "inputSize": len(inputs), "ord": order}
    yield {"inputs": [make(3, 211)], "inputSize": 1, "ord": 2}


@samples("diopiAmax")
def largest(make: Maker) -> Iterator[Sample]:
    yield {"self": make(3, 4, 5), "dim": [1], "keepdim": False}
    yield {"self": make(3, 4, 5), "dim": [-1, 0], "keepdim": True}
    yield {"self": make(7, 713), "dim": [], "keepdim": False}
    yield {"self": make(7, 713), "dim": [-2], "keepdim": True}
    yield {"self": make(), "dim": [], "keepdim": False}


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
        yield {
            "input": make(*shape),
            "dim": dim,
            value: make.out(*result),
            indices: make.out(*result, dtype=torch.int64),
        }


@samples("diopiMaxAll", "diopiMinAll")
def extremes(make: Maker) -> Iterator[Sample]:
    yield {"input": make(3, 4, 5)}
    yield {"input": make(7, 713)}
    yield {"input": make(1)}
    yield {"input": make()}


@samples("diopiArgmax", "diopiArgmin")
def positions(make: Maker) -> Iterator[Sample]:
    yield {"input": make(3, 4, 5), "dim": 1, "keepdim": False}
    yield {"input": make(3, 4, 5), "dim": -1, "keepdim": True}
    yield {"input": make(3, 4, 5), "keepdim": False}
    yield {"input": make(7, 713), "dim": 0, "keepdim": False}
    yield {"input": make(7, 713), "dim": 1, "keepdim": False}
    yield {"input": make(), "keepdim": False}


@samples("diopiAny", "diopiAll")
def quantifiers(make: Maker) -> Iterator[Sample]:
    def sparse(*shape: int) -> torch.Tensor:
        """Rows of zeros only, of none, and of some."""
        values = make(*shape)
        drawn = values != 0
        chosen = drawn & make.mask(*shape, rate=0.3)
        if values.dim() > 1:
            chosen[0] = False
            chosen[-1] = True
        return make.laid_out(torch.where(chosen, torch.ones_like(values), torch.zeros_like(values)))

    yield {"input": sparse(5, 7), "dim": 1, "out": make.out(5, dtype=torch.bool)}
    yield {"input": sparse(5, 3, 4), "dim": -1, "out": make.out(5, 3, 1, dtype=torch.bool)}
    yield {"input": sparse(5, 7), "out": make.out(dtype=torch.bool)}
    yield {"input": make(7, 713), "dim": 0, "out": make.out(713, dtype=torch.bool)}
    yield {"input": make(0, 3), "dim": 0, "out": make.out(3, dtype=torch.bool)}
    yield {"input": make(), "out": make.out(dtype=torch.bool)}


@samples("diopiCumsum")
def running_sums(make: Maker) -> Iterator[Sample]:
    dtype = _summed_dtype(make)
    yield {"input": make(3, 4, 5), "dim": 1, "out": make.out(3, 4, 5, dtype=dtype)}
    yield {"input": make(3, 4, 5), "dim": -1, "out": make.out(3, 4, 5, dtype=dtype)}
    yield {"input": make(7, 713), "dim": 1, "out": make.out(7, 713, dtype=dtype)}
    yield {"input": make(0, 3), "dim": 0, "out": make.out(0, 3, dtype=dtype)}
    yield {"input": make(), "dim": 0, "out": make.out(dtype=dtype)}


@samples("diopiCumsumBackward")
def running_sum_gradients(make: Maker) -> Iterator[Sample]:
    yield {"grad_output": make(3, 4, 5), "dim": 1}
    yield {"grad_output": make(3, 4, 5), "dim": -1}
    yield {"grad_output": make(7, 713), "dim": 0}
    yield {"grad_output": make(), "dim": 0}


@samples("diopiSoftmax", "diopiLogSoftmax")
def softmaxes(make: Maker) -> Iterator[Sample]:
    yield {"input": make(3, 4, 5), "dim": 1}
    yield {"input": make(3, 4, 5), "dim": -1}
    yield {"input": make(3, 4, 5), "dim": 0}
    yield {"input": make(7, 713), "dim": 1}
    yield {"input": make(3, 1), "dim": 1}
    yield {"input": make(0, 3), "dim": 1}
    yield {"input": make(), "dim": 0}


@samples("diopiSoftmaxBackward", "diopiLogSoftmaxBackward")
def softmax_gradients(make: Maker) -> Iterator[Sample]:
    forward = torch.softmax if make.function == "diopiSoftmaxBackward" else torch.log_softmax
    for shape, dim in (((3, 4, 5), 1), ((3, 4, 5), -1), ((5, 3, 2), 0), ((7, 311), 1), ((3, 1), 1)):
        output = forward(make(*shape, low=-4, high=4), dim)
        yield {"grad_output": make(*shape, low=-2, high=2), "output": make.laid_out(output), "dim": dim}
