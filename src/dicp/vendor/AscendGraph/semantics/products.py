"""Matrix products and convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

from dicp.vendor.AscendGraph.operators import computes, require_one_dtype


@computes("MatMulV2")
def matmul(
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None = None,
    offset_w: Tensor | None = None,
    *,
    transpose_x1: bool = False,
    transpose_x2: bool = False,
    offset_x: int = 0,
) -> Tensor:
    require_one_dtype("MatMulV2", x1, x2, bias)
    x1, x2 = (x1.t() if transpose_x1 else x1), (x2.t() if transpose_x2 else x2)
    return torch.mm(x1, x2) if bias is None else torch.addmm(bias, x1, x2)


@computes("BatchMatMul")
def batch_matmul(x1: Tensor, x2: Tensor, *, adj_x1: bool = False, adj_x2: bool = False) -> Tensor:
    require_one_dtype("BatchMatMul", x1, x2)
    x1, x2 = (x1.mT if adj_x1 else x1), (x2.mT if adj_x2 else x2)
    return torch.matmul(x1, x2)
