"""Copies with an order of their own: joins, gathers, scatters, borders."""

from __future__ import annotations

import torch

from dicp.conformance.declaration import GRIDS, IMAGES, SHAPES, DrawnValues, Size, operator

aten = torch.ops.aten

COPIED = (torch.float32, torch.bfloat16, torch.int64)
CUBES = (Size((4, 6, 5), (4, 6, 5)), Size((2, 8, 3), (3, 10, 3)))
LONG = (Size((9, 4), (9, 4)), Size((12, 5), (13, 5)))


def _distinct(d: DrawnValues) -> torch.Tensor:
    """Three rows, none of them twice: which of two writes comes last is not said."""
    return torch.randperm(d.shape[0], generator=d.generator)[:3]


def _distinct_rows(d: DrawnValues) -> torch.Tensor:
    columns = [torch.randperm(d.shape[0], generator=d.generator)[:2] for _ in range(d.shape[1])]
    return torch.stack(columns, 1)


operator(aten.cat.default, lambda d: d([d.normal(), d.normal(), d.normal()], 0), SHAPES, COPIED)
operator(
    aten.cat.default,
    lambda d: d([d.normal(d.shape[0], 2), d.normal(), d.normal(d.shape[0], 5)], 1),
    GRIDS,
    COPIED,
)
operator(
    aten.cat.default,
    lambda d: d([d.normal(), d.normal().float()], -1),
    GRIDS[:1],
    (torch.float16, torch.int64),
)
operator(aten.stack.default, lambda d: d([d.normal(), d.normal()], 1), GRIDS, COPIED)
operator(aten.flip.default, lambda d: d(d.normal(), [0, 2]), CUBES, COPIED)
operator(aten.roll.default, lambda d: d(d.normal(), [2, -1], [0, 1]), GRIDS, (torch.float32, torch.int64))
operator(aten.repeat.default, lambda d: d(d.normal(), [2, 1, 3]), GRIDS, COPIED)
operator(aten.tril.default, lambda d: d(d.normal()), GRIDS, COPIED)
operator(aten.triu.default, lambda d: d(d.normal(), 1), GRIDS, COPIED)
operator(
    aten.constant_pad_nd.default,
    lambda d: d(d.normal(), [1, 2, 0, 3], 0.5),
    GRIDS,
    (torch.float32, torch.bfloat16),
)
operator(
    aten.constant_pad_nd.default, lambda d: d(d.normal(), [-1, 2], 7), GRIDS, (torch.float32, torch.int64)
)
operator(aten.reflection_pad2d.default, lambda d: d(d.normal(), [1, 2, 2, 1]), IMAGES, (torch.float32,))
operator(aten.replication_pad2d.default, lambda d: d(d.normal(), [1, 2, 2, 1]), IMAGES, (torch.float32,))

operator(aten.embedding.default, lambda d: d(d.normal(11, 6), d.integers(0, 11)), GRIDS)
operator(aten.index_select.default, lambda d: d(d.normal(), 1, d.integers(0, d.shape[1], 7)), GRIDS, COPIED)
operator(
    aten.gather.default, lambda d: d(d.normal(), 0, d.integers(0, d.shape[0], 3, d.shape[1])), GRIDS, COPIED
)
operator(
    aten.gather.default, lambda d: d(d.normal(), 1, d.integers(0, d.shape[1], d.shape[0], 4)), GRIDS, COPIED
)
operator(aten.index.Tensor, lambda d: d(d.normal(), [d.integers(0, d.shape[0], 8)]), GRIDS, COPIED)
operator(aten.index.Tensor, lambda d: d(d.normal(), [None, d.integers(0, d.shape[1], 3, 2)]), GRIDS, COPIED)
operator(
    aten.index.Tensor,
    lambda d: d(d.normal(), [d.integers(0, d.shape[0], 5, 1), d.integers(0, d.shape[1], 4)]),
    GRIDS,
    (torch.float32,),
)
operator(aten.take.default, lambda d: d(d.normal(4, 6), d.integers(0, 24)), GRIDS, (torch.float32,))
operator(
    aten.scatter.src, lambda d: d(d.normal(), 0, _distinct_rows(d), d.normal(2, d.shape[1])), LONG, COPIED
)
operator(aten.scatter.value, lambda d: d(d.normal(), 0, _distinct_rows(d), 3), LONG, COPIED)
operator(
    aten.scatter_add.default,
    lambda d: d(d.normal(), 0, d.integers(0, d.shape[0], 6, d.shape[1]), d.normal(6, d.shape[1])),
    LONG,
    (torch.float32, torch.int64),
)
operator(
    aten.index_add.default,
    lambda d: d(d.normal(), 0, d.integers(0, d.shape[0], 6), d.normal(6, d.shape[1])),
    LONG,
    (torch.float32, torch.int64),
)
operator(
    aten.index_put.default, lambda d: d(d.normal(), [_distinct(d)], d.normal(3, d.shape[1])), LONG, COPIED
)
operator(
    aten.index_put.default,
    lambda d: d(d.normal(), [d.integers(0, d.shape[0], 6)], d.normal(6, d.shape[1]), True),
    LONG,
    (torch.float32, torch.int64),
)
operator(aten.index_fill.int_Scalar, lambda d: d(d.normal(), 0, _distinct(d), 2), LONG, (torch.float32,))
operator(aten.select_scatter.default, lambda d: d(d.normal(), d.normal(d.shape[0]), 1, 2), LONG, COPIED)
operator(aten.slice_scatter.default, lambda d: d(d.normal(), d.normal(d.shape[0], 2), 1, 1, 3), LONG, COPIED)
operator(aten.diagonal_scatter.default, lambda d: d(d.normal(), d.normal(d.shape[1])), LONG, (torch.float32,))

operator(aten.pixel_shuffle.default, lambda d: d(d.normal(), 2), IMAGES, (torch.float32,))
operator(aten.upsample_nearest2d.vec, lambda d: d(d.normal(), None, [2.0, 2.0]), IMAGES, (torch.float32,))
operator(
    aten.upsample_bilinear2d.vec, lambda d: d(d.normal(), None, False, [2.0, 2.0]), IMAGES, (torch.float32,)
)
operator(
    aten.im2col.default, lambda d: d(d.normal(), [2, 2], [1, 1], [0, 0], [2, 2]), IMAGES, (torch.float32,)
)
