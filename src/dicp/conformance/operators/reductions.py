"""Sums, extremes, positions, scans, softmax."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dicp.conformance.declaration import FLOATING, GRIDS, SHAPES, DrawnValues, Size, operator
from dicp.conformance.programs import CallArguments

aten = torch.ops.aten

CUBES = (Size((3, 5, 7), (3, 5, 7)), Size((1, 40, 6), (4, 40, 6)))
WHOLE = (torch.int32, torch.int64)

operator(aten.sum.default, lambda d: d(d.normal()), SHAPES, (*FLOATING, torch.int64, torch.bool))
operator(aten.mean.default, lambda d: d(d.normal()))
operator(aten.prod.default, lambda d: d(d.positive()), GRIDS[:1])
operator(aten.prod.dim_int, lambda d: d(d.positive(), 1), GRIDS[:1], (torch.float32, torch.int64))


def _over(dims: list[int] | int, *rest: bool) -> Callable[[DrawnValues], CallArguments]:
    return lambda d: d(d.normal(), dims, *rest)


for _dims in ([1], [0, 2], [-1]):
    operator(aten.sum.dim_IntList, _over(_dims), CUBES)
    operator(aten.mean.dim, _over(_dims, True), CUBES)
operator(
    aten.sum.dim_IntList,
    lambda d: d(d.normal(), [0], dtype=torch.float32),
    GRIDS,
    (torch.bfloat16, torch.int32),
)

for _overload in (aten.amax.default, aten.amin.default):
    operator(_overload, lambda d: d(d.normal(), [1], True), CUBES, (*FLOATING, torch.int64))
    operator(_overload, lambda d: d(d.normal(), [0, 2]), CUBES, (torch.float32,))
operator(aten.aminmax.default, lambda d: d(d.normal(), dim=1), GRIDS, (torch.float32,))
for _overload in (aten.max.default, aten.min.default):
    operator(_overload, lambda d: d(d.normal()), SHAPES, (*FLOATING, torch.int64))
for _overload in (aten.max.dim, aten.min.dim):
    operator(_overload, lambda d: d(d.apart(), 1), CUBES, (torch.float32, torch.int64))
for _overload in (aten.argmax.default, aten.argmin.default):
    operator(_overload, lambda d: d(d.apart(), 1), CUBES, (torch.float32, torch.int64))
    operator(_overload, lambda d: d(d.apart(), -1, True), GRIDS, (torch.float32,))
for _overload in (aten.any.default, aten.all.default):
    operator(_overload, lambda d: d(d.booleans()), GRIDS, (torch.bool,))
for _overload in (aten.any.dim, aten.all.dim):
    operator(_overload, lambda d: d(d.normal(), 1), GRIDS, (torch.bool, torch.int64, torch.float32))

for _overload in (aten.var.correction, aten.std.correction, aten.var_mean.correction):
    operator(_overload, lambda d: d(d.normal(), [1], correction=0, keepdim=True), CUBES)
    operator(_overload, lambda d: d(d.normal(), [0, 1], correction=1), CUBES, (torch.float32,))
operator(aten.linalg_vector_norm.default, lambda d: d(d.normal(), 2, [1]), CUBES)
operator(aten.linalg_vector_norm.default, lambda d: d(d.normal(), 1, [0], True), GRIDS, (torch.float32,))
operator(aten.linalg_vector_norm.default, lambda d: d(d.normal(), float("inf")), GRIDS, (torch.float32,))
operator(aten.logsumexp.default, lambda d: d(d.normal(), [1], True), CUBES)
operator(aten.count_nonzero.default, lambda d: d(d.normal()), GRIDS, (torch.int64, torch.bool))

operator(aten.cumsum.default, lambda d: d(d.normal(), 1), CUBES, (*FLOATING, torch.int64))
operator(aten.cumsum.default, lambda d: d(d.normal(), 0), GRIDS, (torch.float32, torch.int32))
operator(aten.cumprod.default, lambda d: d(d.uniform(0.5, 1.4), 1), GRIDS, (torch.float32,))
operator(aten.sort.default, lambda d: d(d.apart(), 1, True), CUBES, (torch.float32, torch.int64))
operator(aten.topk.default, lambda d: d(d.apart(), 3, 1), GRIDS, (torch.float32,))

for _dim in (-1, 1):
    operator(aten._softmax.default, _over(_dim, False), CUBES)
    operator(aten._log_softmax.default, _over(_dim, False), CUBES)
