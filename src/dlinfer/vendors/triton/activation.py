"""Gated activations."""

from __future__ import annotations

import math

import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.vendors.triton.language import cdiv, jit, power_above
from dlinfer.vendors.triton.launching import Launcher

_COLUMNS = 1024


@jit
def gated(gate: tl.tensor, up: tl.tensor) -> tl.tensor:
    """silu(gate) * up in float32."""
    return gate / (1.0 + tl.exp(-gate)) * up


@Launcher
def _silu_kernel(
    x: tl.tensor, out: tl.tensor, size: tl.tensor, row_stride: tl.tensor, COLUMNS: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < size
    gate = tl.load(x + row * row_stride + column, mask=inside, other=0).to(tl.float32)
    up = tl.load(x + row * row_stride + size + column, mask=inside, other=0).to(tl.float32)
    tl.store(out + row * size + column, gated(gate, up).to(out.dtype.element_ty), mask=inside)


def silu_and_mul(input_tensor: Tensor, dim: int = -1) -> Tensor:
    """`silu_and_mul` of the interface."""
    shape = list(input_tensor.shape)
    place = dim % len(shape)
    if place != len(shape) - 1:
        # Halves of an outer dimension are the halves of everything behind it.
        input_tensor = input_tensor.contiguous()
    shape[place] //= 2
    out = input_tensor.new_empty(shape)
    if not out.numel():
        return out
    size = math.prod(shape[place:])
    rows = input_tensor.reshape(-1, 2 * size)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    columns = min(_COLUMNS, power_above(size))
    _silu_kernel(
        (rows.shape[0], cdiv(size, columns)),
        (rows, out),
        (size, rows.stride(0)),
        COLUMNS=columns,
        num_warps=min(4, max(1, columns // 128)),
    )
    return out
