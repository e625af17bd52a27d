"""What autograd calls on the way back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dicp.conformance.declaration import GRIDS, IMAGES, SHAPES, DrawnValues, Size, operator
from dicp.conformance.programs import CallArguments

aten = torch.ops.aten

FLOAT = (torch.float32,)
HALVES = (torch.float32, torch.bfloat16)
CUBES = (Size((3, 5, 7), (3, 5, 7)), Size((1, 40, 6), (4, 40, 6)))

operator(aten.sigmoid_backward.default, lambda d: d(d.normal(), d.uniform(0.05, 0.95)), SHAPES, HALVES)
operator(aten.tanh_backward.default, lambda d: d(d.normal(), d.uniform(-0.95, 0.95)), SHAPES, HALVES)
operator(aten.gelu_backward.default, lambda d: d(d.normal(), d.normal()), SHAPES, HALVES)
operator(aten.gelu_backward.default, lambda d: d(d.normal(), d.normal(), approximate="tanh"), SHAPES, FLOAT)
operator(aten.silu_backward.default, lambda d: d(d.normal(), d.normal()), SHAPES, HALVES)
operator(aten.mish_backward.default, lambda d: d(d.normal(), d.normal()), SHAPES, FLOAT)
operator(aten.threshold_backward.default, lambda d: d(d.normal(), d.normal(), 0), SHAPES, HALVES)
operator(aten.hardswish_backward.default, lambda d: d(d.normal(), d.normal()), SHAPES, FLOAT)
operator(aten.hardsigmoid_backward.default, lambda d: d(d.normal(), d.normal()), SHAPES, FLOAT)
operator(aten.hardtanh_backward.default, lambda d: d(d.normal(), d.normal(), -0.5, 0.7), SHAPES, FLOAT)
operator(aten.leaky_relu_backward.default, lambda d: d(d.normal(), d.normal(), 0.2, False), SHAPES, FLOAT)
operator(aten.elu_backward.default, lambda d: d(d.normal(), 0.7, 1, 1, False, d.normal()), SHAPES, FLOAT)
operator(aten.softplus_backward.default, lambda d: d(d.normal(), d.normal(), 1.5, 1.0), SHAPES, FLOAT)
operator(aten.log_sigmoid_backward.default, lambda d: d(d.normal(), d.normal(), d.normal()), SHAPES, FLOAT)
operator(aten.mse_loss_backward.default, lambda d: d(d.normal(), d.normal(), d.normal(), 0), SHAPES, FLOAT)
operator(aten.native_dropout_backward.default, lambda d: d(d.normal(), d.booleans(), 1.25), SHAPES, FLOAT)


def _softmax_of(d: DrawnValues, dim: int) -> Tensor:
    return torch.softmax(d.normal().float(), dim).to(d.dtype)


def _softmax_gradient(dim: int, *, logarithm: bool) -> Callable[[DrawnValues], CallArguments]:
    def draw(d: DrawnValues) -> CallArguments:
        grad, result = d.normal(), _softmax_of(d, dim)
        return d(grad, result.log() if logarithm else result, dim, d.dtype)

    return draw


for _dim in (-1, 1):
    operator(
        aten._softmax_backward_data.default,
        _softmax_gradient(_dim, logarithm=False),
        CUBES,
        HALVES,
    )
    operator(
        aten._log_softmax_backward_data.default,
        _softmax_gradient(_dim, logarithm=True),
        CUBES,
        FLOAT,
    )
operator(
    aten.nll_loss_backward.default,
    lambda d: d(
        d.normal(1)[0], torch.log_softmax(d.normal(d.shape[0], 6), 1), d.integers(0, 6, d.shape[0]), None, 1, -100,
        torch.tensor(float(d.shape[0])),
    ),
    GRIDS,
    FLOAT,
)  # fmt: skip
operator(
    aten.native_layer_norm_backward.default,
    lambda d: d(
        d.normal(d.shape[0], 20), d.normal(d.shape[0], 20), [20], d.normal(d.shape[0], 1), d.positive(d.shape[0], 1),
        d.normal(20), d.normal(20), [True, True, True],
    ),
    GRIDS,
    FLOAT,
)  # fmt: skip
operator(
    aten.native_group_norm_backward.default,
    lambda d: d(
        d.normal(), d.normal(), d.normal(d.shape[0], 2), d.positive(d.shape[0], 2), d.normal(4), d.shape[0], 4,
        d.shape[2] * d.shape[3], 2, [True, True, True],
    ),
    IMAGES[:1],
    FLOAT,
)  # fmt: skip
operator(
    aten.native_batch_norm_backward.default,
    lambda d: d(
        d.normal(),
        d.normal(),
        d.normal(4),
        None,
        None,
        d.normal(4),
        d.positive(4),
        True,
        1e-5,
        [True, True, True],
    ),
    IMAGES,
    FLOAT,
)
operator(
    aten.embedding_dense_backward.default,
    lambda d: d(d.normal(9, 6), d.integers(0, 11, 9), 11, 3, False),
    GRIDS[:1],
    FLOAT,
)
operator(
    aten._adaptive_avg_pool2d_backward.default,
    lambda d: d(d.normal(*d.shape[:2], 2, 2), d.normal()),
    IMAGES[:1],
    FLOAT,
)
operator(
    aten._adaptive_avg_pool2d_backward.default,
    lambda d: d(d.normal(*d.shape[:2], 3, 2), d.normal(*d.shape[:2], 7, 5)),
    IMAGES,
    FLOAT,
)
operator(
    aten.avg_pool2d_backward.default,
    lambda d: d(
        d.normal(*d.shape[:2], d.shape[2] // 2, d.shape[3] // 2),
        d.normal(),
        [2, 2],
        [2, 2],
        [0, 0],
        False,
        True,
        None,
    ),
    IMAGES,
    FLOAT,
)


def _max_pool_backward(d: DrawnValues) -> CallArguments:
    value = d.apart() / 7
    grad = d.normal(*d.shape[:2], d.shape[2] // 2, d.shape[3] // 2)
    picked = aten.max_pool2d_with_indices.default(value, [2, 2], [2, 2])[1]
    return d(grad, value, [2, 2], [2, 2], [0, 0], [1, 1], False, picked)


operator(aten.max_pool2d_with_indices_backward.default, _max_pool_backward, IMAGES, FLOAT)
operator(
    aten.slice_backward.default,
    lambda d: d(d.normal(d.shape[0], 2), d.size(d.shape[0], 6), 1, 1, 5, 2),
    GRIDS,
    FLOAT,
)
operator(
    aten.select_backward.default, lambda d: d(d.normal(d.shape[0]), d.size(d.shape[0], 6), 1, 2), GRIDS, FLOAT
)
