"""Tensors out of nothing."""

from __future__ import annotations

import torch

from dicp.conformance.declaration import GRIDS, SHAPES, operator

aten = torch.ops.aten

DTYPES = (torch.float32, torch.bfloat16, torch.int64)

operator(aten.full.default, lambda d: d(d.size(), 3, dtype=d.dtype), SHAPES, DTYPES)
operator(aten.zeros.default, lambda d: d(d.size(), dtype=d.dtype), SHAPES[:2], DTYPES)
operator(aten.ones.default, lambda d: d(d.size(), dtype=d.dtype), SHAPES[:2], DTYPES)
operator(aten.full_like.default, lambda d: d(d.normal(), 2.5), SHAPES, (torch.float32, torch.float16))
operator(aten.zeros_like.default, lambda d: d(d.normal()), SHAPES, DTYPES)
operator(aten.ones_like.default, lambda d: d(d.normal()), SHAPES, DTYPES)
operator(aten.new_zeros.default, lambda d: d(d.normal(), d.size(*d.shape, 2)), GRIDS, DTYPES)
operator(aten.new_ones.default, lambda d: d(d.normal(), d.size(*d.shape, 2)), GRIDS, DTYPES)
operator(aten.new_full.default, lambda d: d(d.normal(), d.size(2, *d.shape), 7), GRIDS, DTYPES)
operator(aten.empty_like.default, lambda d: d(d.normal()), GRIDS, (torch.float32,), compares_values=False)
operator(
    aten.scalar_tensor.default, lambda d: d(1.5, dtype=d.dtype), SHAPES[:1], (torch.float32, torch.float16)
)
operator(aten.arange.start_step, lambda d: d(2, 30, 3), SHAPES[:1], (torch.int64,))
operator(aten.arange.start_step, lambda d: d(0.5, 4, 0.25, dtype=d.dtype), SHAPES[:1], (torch.float32,))
operator(aten.arange.default, lambda d: d(9, dtype=d.dtype), SHAPES[:1], DTYPES)
operator(aten.eye.default, lambda d: d(5, dtype=d.dtype), SHAPES[:1], DTYPES)
operator(aten.linspace.default, lambda d: d(-1.0, 2.0, 9), SHAPES[:1], (torch.float32,))
