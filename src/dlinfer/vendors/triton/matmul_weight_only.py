"""Matrix products with weights of 4 or 8 bits.

With few rows, weights become numbers on the way into the matrix units, exactly; sums of a group of rows are then multiplied by
its scale. Many programs share a product of few rows: each takes some of the depth. With many rows the weights are put into
memory as numbers first, rounded to the dtype of the activations, for a product of torch's own.
"""

from __future__ import annotations

import torch
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.vendors.triton import tables
from dlinfer.vendors.triton.launching import HALF_DTYPES, Launcher, cdiv, jit, kernel, multiprocessors
from dlinfer.vendors.triton.layers import rows_of
from dlinfer.vendors.triton.matmul import tile_of

# Programs of a product for each multiprocessor.
_PROGRAMS = 4


@jit
def nibbles(
    base: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    inside: tl.tensor,
    stride: tl.tensor,
    AWQ: tl.constexpr,
) -> tl.tensor:
    """[rows, 8 * columns] numbers from 0 to 15: eight in an int32, in order, or as AWQ has them."""
    packed = tl.load(base + rows[:, None] * stride + columns[None, :], mask=inside, other=0)
    element = tl.arange(0, 8)
    shift = (element // 2 + element % 2 * 4) * 4 if AWQ else element * 4
    number = (packed[:, :, None] >> shift[None, None, :]) & 15
    return tl.reshape(number, (packed.shape[0], packed.shape[1] * 8))


@jit
def small_number(x: tl.tensor) -> tl.tensor:
    """Numbers from 0 to 15 in float32: as the last bits of 2**23, which is taken away again. Conversions are far slower."""
    return (x | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@jit
def group_row(
    base: tl.tensor,
    group: tl.tensor,
    pid: tl.tensor,
    stride: tl.tensor,
    N: tl.tensor,
    COLUMNS: tl.constexpr,
    PACKED: tl.constexpr,
) -> tl.tensor:
    """Scales or offsets of one group, [1, COLUMNS], in float32."""
    if PACKED:
        columns = pid * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)
        rows = group + tl.arange(0, 1)
        row = nibbles(base, rows, columns, (columns < N // 8)[None, :], stride, True).to(tl.float32)
    else:
        n = pid * COLUMNS + tl.arange(0, COLUMNS)
        row = tl.load(base + group * stride + n, mask=n < N, other=0).to(tl.float32)[None, :]
    return row


@jit
def stored_weight(
    weight: tl.tensor,
    offset: tl.tensor,
    k: tl.tensor,
    there: tl.tensor,
    group: tl.tensor,
    pid: tl.tensor,
    N: tl.tensor,
    weight_row: tl.tensor,
    offset_row: tl.tensor,
    FOUR: tl.constexpr,
    AWQ: tl.constexpr,
    KIND: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """A tile of weights of one group, not yet multiplied by its scale. Whole numbers are exact in every dtype."""
    rows = k.to(tl.int64)
    if FOUR:
        columns = pid * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)
        number = nibbles(weight, rows, columns, there[:, None] & (columns < N // 8)[None, :], weight_row, AWQ)
        if AWQ:
            y = small_number(number) - group_row(offset, group, pid, offset_row, N, COLUMNS, True)
        else:
            y = small_number(number ^ 8) - 8.0
            if offset is not None:
                y += group_row(offset, group, pid, offset_row, N, COLUMNS, False)
        y = y.to(KIND)
    else:
        n = pid * COLUMNS + tl.arange(0, COLUMNS)
        inside = there[:, None] & (n < N)[None, :]
        number = tl.load(weight + rows[:, None] * weight_row + n[None, :], mask=inside, other=0)
        if offset is None:
            y = number.to(KIND)
        else:
            y = (number.to(tl.float32) + group_row(offset, group, pid, offset_row, N, COLUMNS, False)).to(
                KIND
            )
    return y


@Launcher
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
    """A tile of the product over a share of the depth: `out` has one [M, N] for each share."""
    pid_m, pid_n = tile_of(M, N, BLOCK_M, BLOCK_N)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    steps = tl.cdiv(group_size, BLOCK_K)
    everything = K // group_size * steps
    each = tl.cdiv(everything, tl.num_programs(1))
    first = tl.program_id(1) * each
    for step in range(first, tl.minimum(first + each, everything)):
        group = step // steps
        within = step % steps * BLOCK_K + tl.arange(0, BLOCK_K)
        k = group * group_size + within
        there = within < group_size
        left = tl.load(
            x + m.to(tl.int64)[:, None] * x_row + k[None, :], mask=(m < M)[:, None] & there[None, :], other=0
        )
        right = stored_weight(
            weight, offset, k, there, group, pid_n, N, weight_row, offset_row, FOUR, AWQ, x.dtype.element_ty, BLOCK_N,
        )  # fmt: skip
        factor = group_row(scale, group, pid_n, scale_row, N, BLOCK_N, False)
        acc += tl.dot(left, right, input_precision=PRECISION) * factor
    if bias is not None:
        acc += tl.load(bias + n, mask=n < N, other=0).to(tl.float32)[None, :]
    inside = (m < M)[:, None] & (n < N)[None, :]
    row = tl.program_id(1).to(tl.int64) * M + m
    tl.store(out + row[:, None] * N + n[None, :], acc.to(out.dtype.element_ty), mask=inside)


@Launcher
def _sum_kernel(
    parts: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    N: tl.tensor,
    shares: tl.tensor,
    SIZE: tl.constexpr,
) -> None:
    """The sum of all shares of the depth, and the bias."""
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    acc = tl.full([SIZE], 0.0, tl.float32)
    at = parts + i
    for _ in range(0, shares):
        acc += tl.load(at, mask=i < count, other=0)
        at += count
    if bias is not None:
        acc += tl.load(bias + i % N, mask=i < count, other=0).to(tl.float32)
    tl.store(out + i, acc.to(out.dtype.element_ty), mask=i < count)


@Launcher
def _number_kernel(
    weight: tl.tensor,
    scale: tl.tensor,
    offset: tl.tensor,
    out: tl.tensor,
    N: tl.tensor,
    group_size: tl.tensor,
    weight_row: tl.tensor,
    scale_row: tl.tensor,
    offset_row: tl.tensor,
    FOUR: tl.constexpr,
    AWQ: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """Weights as numbers [in, out]. BLOCK_K divides group_size."""
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    pid = tl.program_id(1)
    n = pid * BLOCK_N + tl.arange(0, BLOCK_N)
    group = tl.program_id(0) * BLOCK_K // group_size
    number = stored_weight(
        weight, offset, k, k >= 0, group, pid, N, weight_row, offset_row, FOUR, AWQ, tl.float32, BLOCK_N
    )
    y = number * group_row(scale, group, pid, scale_row, N, BLOCK_N, False)
    to = out + k.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(to, y.to(out.dtype.element_ty), mask=(n < N)[None, :])


@kernel("weight_quant_matmul")
def weight_quant_matmul(
    x1: Tensor, x2: Tensor, scale: Tensor, offset: Tensor | None, bias: Tensor | None, group_size: int
) -> Tensor:
    size, four = x2.shape[0], x2.dtype == torch.int32
    features = x2.shape[1] * (8 if four else 1)
    group = group_size or size
    if not x1.numel() or not features:
        return NotImplemented
    weight = x2 if x2.stride(1) == 1 else x2.contiguous()
    scale = scale.reshape(size // group, features).contiguous()
    awq = offset is not None and offset.dtype == torch.int32
    if offset is not None:
        offset = offset.reshape(size // group, -1).contiguous()
    strides = (weight.stride(0), scale.stride(0), 0 if offset is None else offset.stride(0))
    x = rows_of(x1)
    if x.shape[0] > tables.FEW_ROWS:
        depth = min(32, group & -group)
        numbers = torch.empty((size, features), dtype=x1.dtype, device=x1.device)
        _number_kernel(
            (size // depth, cdiv(features, 256)), (weight, scale, offset, numbers), (features, group, *strides),
            FOUR=four, AWQ=awq, BLOCK_N=256, BLOCK_K=depth, num_warps=4,
        )  # fmt: skip
        result = x @ numbers if bias is None else torch.addmm(bias.to(x.dtype), x, numbers)
        return result.view(*x1.shape[:-1], features)
    return _few_rows(x, weight, scale, offset, bias, group, strides, four, awq).view(*x1.shape[:-1], features)


def _few_rows(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    bias: Tensor | None,
    group: int,
    strides: tuple[int, int, int],
    four: bool,
    awq: bool,
) -> Tensor:
    (count, size), features, half = x.shape, scale.shape[1], x.dtype in HALF_DTYPES
    tile = tables.weight(count, half, group)
    tiles = cdiv(count, tile.rows) * cdiv(features, tile.columns)
    steps = size // group * cdiv(group, tile.depth)
    shares = max(1, min(_PROGRAMS * multiprocessors(x.device) // tiles, steps // 4))
    kind = x.dtype if shares == 1 else torch.float32
    out = torch.empty((shares, count, features), dtype=kind, device=x.device)
    added = None if bias is None or shares > 1 else bias.contiguous()
    _weight_kernel(
        (tiles, shares), (x, weight, scale, offset, added, out), (count, features, size, group, x.stride(0), *strides),
        FOUR=four, AWQ=awq, PRECISION="tf32" if half else "ieee", BLOCK_M=tile.rows, BLOCK_N=tile.columns,
        BLOCK_K=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if shares == 1:
        return out
    result = torch.empty((count, features), dtype=x.dtype, device=x.device)
    added = None if bias is None else bias.contiguous()
    _sum_kernel(
        (cdiv(count * features, 512),),
        (out, added, result),
        (count * features, features, shares),
        SIZE=512,
        num_warps=4,
    )
    return result
