"""Other shapes and parts of the same values."""

from __future__ import annotations

import torch

from dicp.conformance.declaration import FLOATING, GRIDS, SHAPES, DrawnValues, Size, operator

aten = torch.ops.aten

CUBES = (Size((4, 6, 5), (4, 6, 5)), Size((2, 8, 3), (3, 10, 3)))
COPIED = (torch.float32, torch.float16, torch.int64, torch.bool)


def _flat(d: DrawnValues) -> torch.Size:
    return d.size(d.shape[0], d.shape[1] * d.shape[2])


for _overload in (aten.view.default, aten._unsafe_view.default, aten.reshape.default):
    operator(_overload, lambda d: d(d.normal(), _flat(d)), CUBES, COPIED)
operator(aten.view.default, lambda d: d(d.normal(), [-1]), SHAPES)
operator(aten.permute.default, lambda d: d(d.normal(), [2, 0, 1]), CUBES, COPIED)
operator(aten.transpose.int, lambda d: d(d.normal(), 0, 1), GRIDS, COPIED)
operator(aten.transpose.int, lambda d: d(d.normal(), -1, -3), CUBES, COPIED)
operator(aten.t.default, lambda d: d(d.normal()), GRIDS)
operator(aten.expand.default, lambda d: d(d.normal(d.shape[0], 1), d.size()), GRIDS, COPIED)
operator(aten.expand.default, lambda d: d(d.normal(1, d.shape[1], 1), d.size()), CUBES, (torch.float32,))
operator(aten.slice.Tensor, lambda d: d(d.normal(), 1, 1, 4), CUBES, COPIED)
operator(aten.slice.Tensor, lambda d: d(d.normal(), 1, 1, 9223372036854775807, 2), GRIDS)
operator(aten.slice.Tensor, lambda d: d(d.normal(), -1, -2), CUBES, (torch.float32,))
operator(aten.select.int, lambda d: d(d.normal(), 1, 2), CUBES, COPIED)
operator(aten.select.int, lambda d: d(d.normal(), 0, -1), GRIDS)
operator(aten.squeeze.dim, lambda d: d(d.normal(d.shape[0], 1, d.shape[1]), 1), GRIDS)
operator(aten.squeeze.dims, lambda d: d(d.normal(1, *d.shape, 1), [0, -1]), GRIDS, (torch.float32,))
operator(aten.unsqueeze.default, lambda d: d(d.normal(), 0), GRIDS)
operator(aten.unsqueeze.default, lambda d: d(d.normal(), -1), SHAPES, (torch.float32,))
operator(aten.split.Tensor, lambda d: d(d.normal(4, d.shape[1]), 3), GRIDS)
operator(aten.split_with_sizes.default, lambda d: d(d.normal(d.shape[0], 9), [2, 4, 3], 1), GRIDS)
operator(aten.chunk.default, lambda d: d(d.normal(6, d.shape[1]), 2), GRIDS, (torch.float32,))
operator(aten.unbind.int, lambda d: d(d.normal(3, *d.shape), 0), GRIDS)
operator(aten.diagonal.default, lambda d: d(d.normal(), 1), GRIDS[:1], (torch.float32, torch.int64))
operator(aten.unfold.default, lambda d: d(d.normal(d.shape[0], 9), 1, 4, 2), GRIDS, (torch.float32,))
operator(aten.as_strided.default, lambda d: d(d.normal(6, 8), [3, 5], [8, 1], 9), GRIDS[:1], FLOATING)
operator(aten.alias.default, lambda d: d(d.normal()), GRIDS, (torch.float32,))
operator(aten.detach.default, lambda d: d(d.normal()), GRIDS, (torch.float32,))
operator(aten.movedim.int, lambda d: d(d.normal(), 0, 2), CUBES, (torch.float32,))
operator(aten.flatten.using_ints, lambda d: d(d.normal(), 1), CUBES, (torch.float32,))
