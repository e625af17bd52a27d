"""Quantised activations, and products of 8-bit activations and weights."""

from __future__ import annotations

import torch
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.interface.checks import fake_quantised
from dlinfer.vendors.triton import tables
from dlinfer.vendors.triton.arithmetic import quantised_row, rounded, scaled
from dlinfer.vendors.triton.launching import Launcher, cdiv, has_float8, jit, kernel
from dlinfer.vendors.triton.layers import row_shape, rows_of, served


@Launcher
def _row_quant_kernel(
    x: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    rows: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    FLOAT8: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    y = tl.load(x + row[:, None] * stride + column[None, :], mask=inside, other=0).to(tl.float32)
    number, scale = quantised_row(y, FLOAT8)
    tl.store(out + row[:, None] * size + column[None, :], number, mask=inside)
    tl.store(scales + row, scale, mask=row < rows)


@Launcher
def _static_quant_kernel(
    x: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    offset: tl.tensor,
    rows: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """round(x / scale) + offset, clamped to int8."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    y = tl.load(x + row[:, None] * stride + column[None, :], mask=inside, other=0).to(tl.float32)
    factor = tl.broadcast_to(tl.load(scale).to(tl.float32), y.shape)
    # Far beyond int8 and its offsets, and still within what `rounded` takes.
    number = rounded(tl.minimum(tl.maximum(tl.math.div_rn(y, factor), -100000.0), 100000.0))
    number = rounded(tl.minimum(tl.maximum(number + tl.load(offset).to(tl.float32), -128.0), 127.0))
    tl.store(out + row[:, None] * size + column[None, :], number.to(tl.int8), mask=inside)


def _whole(x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """One scale for all: the largest magnitude is a reduction of the whole device, which torch has."""
    kind = out.dtype
    largest = x.abs().amax().to(torch.float32).clamp(min=1e-7).reshape(1)
    scales = largest / (448.0 if kind == torch.float8_e4m3fn else 127.0)
    rows = rows_of(x)
    _scaled_kernel(
        (cdiv(rows.numel(), 1024),),
        (rows, out, scales),
        (rows.numel(), rows.shape[1], rows.stride(0)),
        FLOAT8=kind == torch.float8_e4m3fn,
        SIZE=1024,
        num_warps=4,
    )
    return out, scales


@Launcher
def _scaled_kernel(
    x: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    count: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    FLOAT8: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    y = tl.load(x + i // columns * stride + i % columns, mask=i < count, other=0).to(tl.float32)
    tl.store(out + i, scaled(y, tl.load(scale), FLOAT8), mask=i < count)


@kernel("dynamic_quant")
def dynamic_quant(x: Tensor, quant_dtype: torch.dtype, quant_granularity: str) -> tuple[Tensor, Tensor]:
    if not x.numel() or not served(x, quant_dtype):
        return NotImplemented
    out, scales = fake_quantised(x, quant_dtype)
    if quant_granularity == "PER_TENSOR":
        return _whole(x, out)
    values = rows_of(x)
    count, size = values.shape
    rows, columns, warps = row_shape(size)
    _row_quant_kernel(
        (cdiv(count, rows),), (values, out, scales), (count, size, values.stride(0)),
        FLOAT8=quant_dtype == torch.float8_e4m3fn, ROWS=rows, COLUMNS=columns, num_warps=warps,
    )  # fmt: skip
    return out, scales


@jit
def tile_of(
    M: tl.tensor, N: tl.tensor, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Which tile of a result [M, N] this program makes; eight rows of tiles at a time, so that operands stay in the cache."""
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    i = tl.program_id(0)
    band = i // (8 * columns)
    height = tl.minimum(rows - band * 8, 8)
    within = i % (8 * columns)
    return band * 8 + within % height, within // height


@Launcher
def _w8a8_kernel(
    a: tl.tensor,
    b: tl.tensor,
    row_scale: tl.tensor,
    column_scale: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    a_row: tl.tensor,
    b_row: tl.tensor,
    row_step: tl.tensor,
    column_step: tl.tensor,
    FLOAT8: tl.constexpr,
    INTEGER_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """a times b transposed, times the scales of rows and columns, plus bias."""
    pid_m, pid_n = tile_of(M, N, BLOCK_M, BLOCK_N)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_at = a + m.to(tl.int64)[:, None] * a_row + k[None, :]
    b_at = b + n.to(tl.int64)[:, None] * b_row + k[None, :]
    acc = tl.full([BLOCK_M, BLOCK_N], 0, tl.float32 if FLOAT8 else tl.int32)
    none: tl.constexpr = 0.0 if FLOAT8 else 0
    for start in range(0, K, BLOCK_K):
        within = (start + k < K)[None, :]
        left = tl.load(a_at, mask=(m < M)[:, None] & within, other=none)
        right = tl.load(b_at, mask=(n < N)[:, None] & within, other=none)
        if FLOAT8:
            # Products of 8-bit floats are summed with few bits by matrix units; those of half dtypes are not.
            acc = tl.dot(left.to(tl.float16), tl.trans(right.to(tl.float16)), acc)
        else:
            acc = tl.dot(left, tl.trans(right), acc, out_dtype=tl.int32)
        a_at += BLOCK_K
        b_at += BLOCK_K
    if INTEGER_BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0)[None, :]
    y = acc.to(tl.float32)
    if row_scale is not None:
        y = y * tl.load(row_scale + m * row_step, mask=m < M, other=0).to(tl.float32)[:, None]
    y = y * tl.load(column_scale + n * column_step, mask=n < N, other=0).to(tl.float32)[None, :]
    if (bias is not None) and (not INTEGER_BIAS):
        y += tl.load(bias + n, mask=n < N, other=0).to(tl.float32)[None, :]
    inside = (m < M)[:, None] & (n < N)[None, :]
    tl.store(out + m.to(tl.int64)[:, None] * N + n[None, :], y.to(out.dtype.element_ty), mask=inside)


def _product(
    a: Tensor,
    b: Tensor,
    row_scale: Tensor | None,
    column_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    rows = rows_of(a)
    weight = b if b.stride(1) == 1 else b.contiguous()
    count, size = rows.shape
    features = weight.shape[0]
    out = torch.empty([*a.shape[:-1], features], dtype=out_dtype, device=a.device)
    if not out.numel():
        return out
    tile = tables.product(count)
    column_scale = column_scale.reshape(-1)
    row_scale = None if row_scale is None else row_scale.reshape(-1)
    row_step = 0 if row_scale is None or row_scale.numel() == 1 else row_scale.stride(0)
    column_step = 0 if column_scale.numel() == 1 else column_scale.stride(0)
    _w8a8_kernel(
        (cdiv(count, tile.rows) * cdiv(features, tile.columns),), (rows, weight, row_scale, column_scale, bias, out),
        (count, features, size, rows.stride(0), weight.stride(0), row_step, column_step),
        FLOAT8=a.dtype == torch.float8_e4m3fn, INTEGER_BIAS=bias is not None and bias.dtype == torch.int32,
        BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


@kernel("linear_w8a8")
def linear_w8a8(
    a: Tensor,
    b: Tensor,
    rms_scale: Tensor,
    linear_scale: Tensor,
    out_dtype: torch.dtype,
    quant_dtype: torch.dtype,
    bias: Tensor | None,
) -> Tensor:
    float8 = quant_dtype == torch.float8_e4m3fn and not has_float8(a.device)
    if float8 or torch.float64 in (out_dtype, rms_scale.dtype, linear_scale.dtype) or not a.shape[-1]:
        return NotImplemented
    if bias is not None and not bias.is_floating_point():
        bias = bias.to(torch.float32)
    return _product(a, b, rms_scale, linear_scale, None if bias is None else bias.contiguous(), out_dtype)


@kernel("linear_w8a8_static")
def linear_w8a8_static(
    x: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    input_offset: Tensor,
    deq_scale: Tensor,
    out_dtype: torch.dtype,
    quant_bias: Tensor | None,
) -> Tensor:
    if torch.float64 in (out_dtype, deq_scale.dtype) or not served(x):
        return NotImplemented
    values = rows_of(x)
    number = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    count, size = values.shape
    if count:
        rows, columns, warps = row_shape(size)
        _static_quant_kernel(
            (cdiv(count, rows),), (values, number, input_scale, input_offset), (count, size, values.stride(0)),
            ROWS=rows, COLUMNS=columns, num_warps=warps,
        )  # fmt: skip
    return _product(
        number, weight, None, deq_scale, None if quant_bias is None else quant_bias.contiguous(), out_dtype
    )
