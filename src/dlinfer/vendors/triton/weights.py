"""Matrix products with weights of 4 or 8 bits: they become numbers again on the way into the matrix units."""

from __future__ import annotations

import torch
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.vendors.triton import tables
from dlinfer.vendors.triton.language import HALVES, cdiv, jit, reference
from dlinfer.vendors.triton.norms import rows_of
from dlinfer.vendors.triton.quantised import tile_of


@jit
def unpacked(
    base: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    inside: tl.tensor,
    stride: tl.tensor,
    AWQ: tl.constexpr,
) -> tl.tensor:
    """[rows, 8 * columns] of 4 bits: eight in an int32, in order and signed, or as AWQ has them."""
    packed = tl.load(base + rows[:, None] * stride + columns[None, :], mask=inside, other=0)
    element = tl.arange(0, 8)
    shift = (element // 2 + element % 2 * 4) * 4 if AWQ else element * 4
    number = (packed[:, :, None] >> shift[None, None, :]) & 15
    if not AWQ:
        number = (number ^ 8) - 8
    return tl.reshape(number, (packed.shape[0], packed.shape[1] * 8))


@jit
def group_row(
    base: tl.tensor,
    group: tl.tensor,
    n: tl.tensor,
    stride: tl.tensor,
    N: tl.tensor,
    BLOCK_N: tl.constexpr,
    PACKED: tl.constexpr,
) -> tl.tensor:
    """Scales or offsets of one group, [1, BLOCK_N], in float32."""
    if PACKED:
        first = tl.min(n, 0) // 8
        columns = first + tl.arange(0, BLOCK_N // 8)
        rows = group + tl.arange(0, 1)
        row = unpacked(base, rows, columns, (columns < N // 8)[None, :], stride, True).to(tl.float32)
    else:
        row = tl.load(base + group * stride + n, mask=n < N, other=0).to(tl.float32)[None, :]
    return row


@jit
def _weight_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    scale: tl.tensor,
    offset: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    group_size: tl.tensor,
    x_row: tl.tensor,
    weight_row: tl.tensor,
    scale_row: tl.tensor,
    offset_row: tl.tensor,
    FOUR: tl.constexpr,
    AWQ: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """One step of K lies in one group, so that numbers are multiplied exactly, and their sum by the scale of the group."""
    pid_m, pid_n = tile_of(M, N, BLOCK_M, BLOCK_N)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    packed = pid_n * (BLOCK_N // 8) + tl.arange(0, BLOCK_N // 8)
    acc = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    steps = tl.cdiv(group_size, BLOCK_K)
    for step in range(0, tl.cdiv(K, group_size) * steps):
        group = step // steps
        within = step % steps * BLOCK_K + tl.arange(0, BLOCK_K)
        k = group * group_size + within
        there = (within < group_size) & (k < K)
        left = tl.load(
            x + m.to(tl.int64)[:, None] * x_row + k[None, :], mask=(m < M)[:, None] & there[None, :], other=0
        )
        rows = k.to(tl.int64)
        if FOUR:
            number = unpacked(
                weight, rows, packed, there[:, None] & (packed < N // 8)[None, :], weight_row, AWQ
            )
        else:
            number = tl.load(
                weight + rows[:, None] * weight_row + n[None, :],
                mask=there[:, None] & (n < N)[None, :],
                other=0,
            )
        factor = group_row(scale, group, n, scale_row, N, BLOCK_N, False)
        if offset is None:
            right = number.to(x.dtype.element_ty)
        else:
            shift = group_row(offset, group, n, offset_row, N, BLOCK_N, AWQ)
            moved = number.to(tl.float32) - shift if AWQ else number.to(tl.float32) + shift
            right = moved.to(x.dtype.element_ty)
        acc += tl.dot(left, right, input_precision=PRECISION) * factor
    if bias is not None:
        acc += tl.load(bias + n, mask=n < N, other=0).to(tl.float32)[None, :]
    inside = (m < M)[:, None] & (n < N)[None, :]
    tl.store(out + m.to(tl.int64)[:, None] * N + n[None, :], acc.to(out.dtype.element_ty), mask=inside)


def weight_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    bias: Tensor | None = None,
    group_size: int = 0,
) -> Tensor:
    """`weight_quant_matmul` of the interface."""
    size, four = x2.shape[0], x2.dtype == torch.int32
    features = x2.shape[1] * (8 if four else 1)
    group = group_size or size
    if not x1.numel() or not features:
        return reference("weight_quant_matmul", x1, x2, scale, offset, bias, group_size)
    x, groups = rows_of(x1), size // group
    weight = x2 if x2.stride(1) == 1 else x2.contiguous()
    scale = scale.reshape(groups, features).contiguous()
    awq = offset is not None and offset.dtype == torch.int32
    if offset is not None:
        offset = offset.reshape(groups, -1).contiguous()
    out = torch.empty([*x1.shape[:-1], features], dtype=x1.dtype, device=x1.device)
    count = x.shape[0]
    half = x1.dtype in HALVES
    tile = tables.weight(count, half, group)
    _weight_kernel[(cdiv(count, tile.rows) * cdiv(features, tile.columns),)](
        x, weight, scale, offset, None if bias is None else bias.contiguous(), out, count, features, size, group,
        x.stride(0), weight.stride(0), scale.stride(0), 0 if offset is None else offset.stride(0),
        FOUR=four, AWQ=awq, PRECISION="tf32" if half else "ieee",
        BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out
