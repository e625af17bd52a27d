"""Norms, pooling, losses, dropout: what layers call."""

from __future__ import annotations

import torch

from dicp.conformance.declaration import FLOATING, GRIDS, IMAGES, SHAPES, DrawnValues, Size, operator

aten = torch.ops.aten

CUBES = (Size((2, 5, 16), (2, 5, 16)), Size((1, 3, 33), (3, 3, 33)))
FLOAT = (torch.float32,)


def _apart(d: DrawnValues) -> torch.Tensor:
    """No two equal values: which of them a pool picks is not said."""
    return d.apart() / 7


operator(
    aten.native_layer_norm.default,
    lambda d: d(d.normal(), [d.shape[2]], d.normal(d.shape[2]), d.normal(d.shape[2]), 1e-5),
    CUBES[:1],
    FLOATING,
)
operator(
    aten.native_layer_norm.default,
    lambda d: d(d.normal(d.shape[0], 20), [20], None, None, 1e-6),
    CUBES,
    FLOAT,
)
operator(
    aten.native_group_norm.default,
    lambda d: d(d.normal(), d.normal(4), d.normal(4), d.shape[0], 4, d.shape[2] * d.shape[3], 2, 1e-5),
    IMAGES[:1],
    FLOAT,
)
operator(
    aten._native_batch_norm_legit_functional.default,
    lambda d: d(d.normal(), d.normal(4), d.normal(4), d.normal(4), d.positive(4), True, 0.1, 1e-5),
    IMAGES,
    FLOAT,
)
operator(
    aten._native_batch_norm_legit_functional.default,
    lambda d: d(d.normal(), None, None, d.normal(4), d.positive(4), False, 0.1, 1e-5),
    IMAGES,
    FLOAT,
)
operator(
    aten._native_batch_norm_legit_no_training.default,
    lambda d: d(d.normal(), d.normal(4), d.normal(4), d.normal(4), d.positive(4), 0.1, 1e-5),
    IMAGES,
    FLOAT,
)
operator(
    aten._fused_rms_norm.default,
    lambda d: d(d.normal(d.shape[0], 24), [24], d.normal(24), 1e-6),
    CUBES,
    FLOAT,
)

operator(aten.max_pool2d_with_indices.default, lambda d: d(_apart(d), [2, 2], [2, 2]), IMAGES, FLOAT)
operator(aten.max_pool2d_with_indices.default, lambda d: d(_apart(d), [3, 3], [2, 2], [1, 1]), IMAGES, FLOAT)
operator(
    aten.max_pool2d_with_indices.default,
    lambda d: d(_apart(d), [2, 2], [1, 1], [0, 0], [2, 2], True),
    IMAGES,
    FLOAT,
)
operator(aten.avg_pool2d.default, lambda d: d(d.normal(), [2, 2]), IMAGES)
operator(aten.avg_pool2d.default, lambda d: d(d.normal(), [3, 3], [2, 2], [1, 1], True, False), IMAGES, FLOAT)
operator(aten._adaptive_avg_pool2d.default, lambda d: d(d.normal(), [2, 2]), IMAGES[:1], FLOATING)
operator(aten._adaptive_avg_pool2d.default, lambda d: d(d.normal(d.shape[0], 4, 7, 5), [3, 2]), IMAGES, FLOAT)
operator(aten._adaptive_avg_pool2d.default, lambda d: d(d.normal(), [1, 1]), IMAGES, FLOAT)

operator(
    aten.nll_loss_forward.default,
    lambda d: d(
        torch.log_softmax(d.normal(d.shape[0], 6).float(), 1), d.integers(0, 6, d.shape[0]), None, 1, -100
    ),
    GRIDS,
    FLOAT,
)
operator(
    aten.nll_loss_forward.default,
    lambda d: d(
        torch.log_softmax(d.normal(d.shape[0], 6).float(), 1),
        d.integers(0, 6, d.shape[0]),
        d.positive(6),
        2,
        1,
    ),
    GRIDS,
    FLOAT,
)
# Nothing is dropped, so that values can be compared; what is drawn is tried by the tests of training.
operator(aten.native_dropout.default, lambda d: d(d.normal(), 0.0, True), SHAPES, FLOAT)
operator(aten.native_dropout.default, lambda d: d(d.normal(), 0.5, False), SHAPES, FLOAT)
operator(aten.glu.default, lambda d: d(d.normal(d.shape[0], 8), 1), GRIDS, FLOAT)
operator(aten.prelu.default, lambda d: d(d.normal(), d.normal(4)), IMAGES, FLOAT)
