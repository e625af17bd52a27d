"""Norms, activations and rotary position embedding."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.interface.checks import fake_quantised
from dlinfer.vendors.triton.arithmetic import quantised_row
from dlinfer.vendors.triton.launching import Launcher, cdiv, has_float8, jit, kernel, power_above

# ---- norms ----

# Rows longer than this do not fit into the registers of one program.
LONGEST = 32768
# Elements that one program takes, if rows are short.
_ELEMENTS = 2048


@Launcher
def _norm_kernel(
    hidden: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    total_out: tl.tensor,
    scales: tl.tensor,
    rows: tl.tensor,
    size: tl.tensor,
    hidden_stride: tl.tensor,
    residual_stride: tl.tensor,
    weight_stride: tl.tensor,
    epsilon: tl.tensor,
    QUANTISED: tl.constexpr,
    FLOAT8: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    x = tl.load(hidden + row[:, None] * hidden_stride + column[None, :], mask=inside, other=0)
    offset = row[:, None] * size + column[None, :]
    if residual is not None:
        other = tl.load(residual + row[:, None] * residual_stride + column[None, :], mask=inside, other=0)
        x = (x.to(tl.float32) + other.to(tl.float32)).to(x.dtype)
        tl.store(total_out + offset, x, mask=inside)
    x = x.to(tl.float32)
    mean = tl.sum(x * x, 1) / size
    root = tl.math.div_rn(tl.full([ROWS], 1.0, tl.float32), tl.math.sqrt_rn(mean + epsilon))
    factor = tl.load(weight + column * weight_stride, mask=column < size, other=0).to(tl.float32)
    y = x * root[:, None] * factor[None, :]
    if QUANTISED:
        number, scale = quantised_row(y, FLOAT8)
        tl.store(out + offset, number, mask=inside)
        tl.store(scales + row, scale, mask=row < rows)
    else:
        tl.store(out + offset, y.to(out.dtype.element_ty), mask=inside)


def rows_of(value: Tensor) -> Tensor:
    """[rows, size] with elements side by side; a view if there is one."""
    flat = value if value.dim() == 2 else value.reshape(-1, value.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] <= 1 else flat.contiguous()


def row_shape(size: int) -> tuple[int, int, int]:
    """(rows of a program, columns of it, warps) for rows of some size."""
    columns = power_above(size)
    rows = max(1, min(16, _ELEMENTS // columns // 2))
    return rows, columns, min(16, max(1, rows * columns // 512))


def _new(states: Tensor) -> Tensor:
    return torch.empty_like(states, memory_format=torch.contiguous_format)


def served(rows: Tensor, quant_dtype: torch.dtype | None = None) -> bool:
    """Whether there are kernels for such rows, and for what they shall become."""
    if quant_dtype == torch.float8_e4m3fn and not has_float8(rows.device):
        return False
    return 0 < rows.shape[-1] <= LONGEST


def _normed(
    hidden_states: Tensor,
    weight: Tensor,
    epsilon: float,
    residual: Tensor | None = None,
    quant_dtype: torch.dtype | None = None,
) -> Any:
    """(norm, its scales if it is quantised, the sum if there is a residual), or NotImplemented."""
    if not served(hidden_states, quant_dtype):
        return NotImplemented
    hidden = rows_of(hidden_states)
    other = None if residual is None else rows_of(residual)
    out, scales = (
        (_new(hidden_states), None) if quant_dtype is None else fake_quantised(hidden_states, quant_dtype)
    )
    total = None if residual is None else _new(hidden_states)
    count, size = hidden.shape
    if count:
        rows, columns, warps = row_shape(size)
        _norm_kernel(
            (cdiv(count, rows),), (hidden, other, weight, out, total, scales),
            (count, size, hidden.stride(0), 0 if other is None else other.stride(0), weight.stride(0), epsilon),
            QUANTISED=scales is not None, FLOAT8=quant_dtype == torch.float8_e4m3fn,
            ROWS=rows, COLUMNS=columns, num_warps=warps,
        )  # fmt: skip
    if scales is None:
        return out if total is None else (out, total)
    return (out, scales) if total is None else (out, scales, total)


@kernel("rms_norm")
def rms_norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return _normed(hidden_states, weight, epsilon)


@kernel("add_rms_norm")
def add_rms_norm(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    return _normed(hidden_states, weight, epsilon, residual)


@kernel("rms_norm_w8a8")
def rms_norm_w8a8(
    hidden_states: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return _normed(hidden_states, weight, epsilon, None, quant_dtype)


@kernel("add_rms_norm_w8a8")
def add_rms_norm_w8a8(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return _normed(hidden_states, weight, epsilon, residual, quant_dtype)


# ---- activations ----

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


@kernel("silu_and_mul")
def silu_and_mul(input_tensor: Tensor, dim: int = -1) -> Tensor:
    shape = list(input_tensor.shape)
    axis = dim % len(shape)
    if axis != len(shape) - 1:
        # Halves of an outer dimension are the halves of everything behind it.
        input_tensor = input_tensor.contiguous()
    shape[axis] //= 2
    out = input_tensor.new_empty(shape)
    if not out.numel():
        return out
    size = math.prod(shape[axis:])
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


# ---- rotary position embedding ----

# Elements that one program turns.
_ROTATED = 1024


@Launcher
def _halves_kernel(
    query: tl.tensor,
    key: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    query_out: tl.tensor,
    key_out: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    size: tl.tensor,
    half: tl.tensor,
    query_token: tl.tensor,
    query_head: tl.tensor,
    key_token: tl.tensor,
    key_head: tl.tensor,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_query = head < heads
    is_key = (head >= heads) & (head < heads + kv_heads)
    # A row of each head: where it is read and where it goes.
    q_row = (token * query_token + head * query_head)[:, None]
    k_row = (token * key_token + (head - heads) * key_head)[:, None]
    q_out = ((token * heads + head) * size)[:, None]
    k_out = ((token * kv_heads + head - heads) * size)[:, None]

    d = tl.arange(0, HALF)[None, :]
    within = d < half
    at_q, at_k = is_query[:, None] & within, is_key[:, None] & within
    first = tl.where(at_q, tl.load(query + q_row + d, mask=at_q), tl.load(key + k_row + d, mask=at_k)).to(
        tl.float32
    )
    second = tl.where(
        at_q, tl.load(query + q_row + half + d, mask=at_q), tl.load(key + k_row + half + d, mask=at_k)
    ).to(tl.float32)
    table = token * 2 * half + d
    cos_first = tl.load(cos + table, mask=within).to(tl.float32)
    cos_second = tl.load(cos + table + half, mask=within).to(tl.float32)
    sin_first = tl.load(sin + table, mask=within).to(tl.float32)
    sin_second = tl.load(sin + table + half, mask=within).to(tl.float32)
    turned = (first * cos_first - second * sin_first).to(query.dtype.element_ty)
    tl.store(query_out + q_out + d, turned, mask=at_q)
    tl.store(key_out + k_out + d, turned, mask=at_k)
    turned = (second * cos_second + first * sin_second).to(query.dtype.element_ty)
    tl.store(query_out + q_out + half + d, turned, mask=at_q)
    tl.store(key_out + k_out + half + d, turned, mask=at_k)
    if REST > 0:
        d = 2 * half + tl.arange(0, REST)[None, :]
        at_q, at_k = is_query[:, None] & (d < size), is_key[:, None] & (d < size)
        tl.store(query_out + q_out + d, tl.load(query + q_row + d, mask=at_q), mask=at_q)
        tl.store(key_out + k_out + d, tl.load(key + k_row + d, mask=at_k), mask=at_k)


@Launcher
def _pairs_kernel(
    states: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    half: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    NATIVE: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    d = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (d < half)
    row = states + token * token_stride + head * head_stride
    first = tl.load(row + 2 * d, mask=inside).to(tl.float32)
    second = tl.load(row + 2 * d + 1, mask=inside).to(tl.float32)
    table = token * 2 * half + d
    within = d < half
    cos_first = tl.load(cos + table, mask=within).to(tl.float32)
    cos_second = tl.load(cos + table + half, mask=within).to(tl.float32)
    sin_first = tl.load(sin + table, mask=within).to(tl.float32)
    sin_second = tl.load(sin + table + half, mask=within).to(tl.float32)
    to = out + (token * heads + head) * (2 * half)
    one = (first * cos_first - second * sin_first).to(out.dtype.element_ty)
    two = (second * cos_second + first * sin_second).to(out.dtype.element_ty)
    tl.store(to + (d if NATIVE else 2 * d), one, mask=inside)
    tl.store(to + (half + d if NATIVE else 2 * d + 1), two, mask=inside)


def _heads_of(states: Tensor) -> Tensor:
    """[tokens, heads, size] with elements side by side; a view if there is one."""
    flat = states if states.dim() == 3 else states.reshape(-1, *states.shape[-2:])
    return flat if flat.stride(2) == 1 or flat.shape[2] <= 1 else flat.contiguous()


@kernel("apply_rotary_pos_emb")
def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    q, k = _heads_of(query), _heads_of(key)
    query_out, key_out = _new(query), _new(key)
    tokens, heads, size = q.shape
    kv_heads, half = k.shape[1], cos.shape[-1] // 2
    if tokens and heads + kv_heads:
        width = power_above(half)
        each = max(1, min(power_above(heads + kv_heads), _ROTATED // width))
        rest = size - 2 * half
        _halves_kernel(
            (tokens, cdiv(heads + kv_heads, each)), (q, k, cos.contiguous(), sin.contiguous(), query_out, key_out),
            (heads, kv_heads, size, half, *q.stride()[:2], *k.stride()[:2]),
            HEADS=each, HALF=width, REST=power_above(rest) if rest else 0, num_warps=4,
        )  # fmt: skip
    return query_out, key_out


@kernel("apply_rotary_pos_emb_interleaved")
def apply_rotary_pos_emb_interleaved(
    states: Tensor, cos: Tensor, sin: Tensor, native_layout: bool = True
) -> Tensor:
    out = _new(states)
    tokens, size = states.shape[0], states.shape[-1]
    if states.numel():
        rows = _heads_of(states.reshape(tokens, -1, size))
        heads, half = rows.shape[1], size // 2
        width = power_above(half)
        each = max(1, min(power_above(heads), _ROTATED // width))
        _pairs_kernel(
            (tokens, cdiv(heads, each)), (rows, cos.contiguous(), sin.contiguous(), out), (heads, half, *rows.stride()[:2]),
            NATIVE=native_layout, HEADS=each, HALF=width, num_warps=4,
        )  # fmt: skip
    return out
