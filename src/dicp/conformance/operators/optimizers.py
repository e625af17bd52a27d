"""Updates of lists of tensors, as optimisers make them."""

from __future__ import annotations

import torch
from torch import Tensor

from dicp.conformance.declaration import GRIDS, DrawnValues, operator

aten = torch.ops.aten

FLOAT = (torch.float32,)


def _several(d: DrawnValues) -> list[Tensor]:
    return [d.normal(), d.normal(7), d.normal(3, 2, 5)]


def _positive(d: DrawnValues) -> list[Tensor]:
    return [d.positive(), d.positive(7), d.positive(3, 2, 5)]


for _overload in (
    aten._foreach_add.List,
    aten._foreach_sub.List,
    aten._foreach_mul.List,
    aten._foreach_maximum.List,
):
    operator(_overload, lambda d: d(_several(d), _several(d)), GRIDS, FLOAT)
operator(aten._foreach_div.List, lambda d: d(_several(d), _positive(d)), GRIDS, FLOAT)
operator(aten._foreach_add.Scalar, lambda d: d(_several(d), 0.5), GRIDS, FLOAT)
operator(aten._foreach_mul.Scalar, lambda d: d(_several(d), 0.5), GRIDS, FLOAT)
operator(aten._foreach_lerp.Scalar, lambda d: d(_several(d), _several(d), 0.1), GRIDS, FLOAT)
operator(aten._foreach_sqrt.default, lambda d: d(_positive(d)), GRIDS, FLOAT)
operator(aten._foreach_addcmul.Scalar, lambda d: d(_several(d), _several(d), _several(d), 0.3), GRIDS, FLOAT)
operator(
    aten._foreach_addcdiv.Scalar, lambda d: d(_several(d), _several(d), _positive(d), -0.3), GRIDS, FLOAT
)
operator(aten._foreach_norm.Scalar, lambda d: d(_several(d)), GRIDS, FLOAT)
