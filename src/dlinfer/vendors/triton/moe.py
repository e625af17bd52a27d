"""Mixtures of experts: tokens are put in the order of their experts on the device, then each expert's tiles are multiplied."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.interface.declaration import Routing
from dlinfer.vendors.triton import tables
from dlinfer.vendors.triton.arithmetic import find_group
from dlinfer.vendors.triton.launching import HALF_DTYPES, Launcher, cdiv, jit, kernel, power_above
from dlinfer.vendors.triton.layers import gated


@Launcher
def _order_kernel(
    ids: tl.tensor, order: tl.tensor, ends: tl.tensor, count: tl.tensor, first: tl.tensor, SIZE: tl.constexpr
) -> None:
    """One expert: where its (token, choice) pairs begin among those of all experts here, and which they are."""
    expert = tl.program_id(0) + first
    i = tl.arange(0, SIZE)
    before = 0
    for start in range(0, count, SIZE):
        chosen = tl.load(ids + start + i, mask=start + i < count, other=-1)
        before += tl.sum(tl.where((chosen >= first) & (chosen < expert), 1, 0))
    for start in range(0, count, SIZE):
        chosen = tl.load(ids + start + i, mask=start + i < count, other=-1)
        mine = tl.where(chosen == expert, 1, 0)
        tl.store(order + before + tl.cumsum(mine, 0) - 1, start + i, mask=mine == 1)
        before += tl.sum(mine)
    tl.store(ends + tl.program_id(0), before)


@jit
def rows_of_tile(
    ends: tl.tensor, tile: tl.tensor, experts: tl.tensor, ROWS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """(expert, rows of the tile, where the rows of the expert end)."""
    expert = find_group(ends, tile, experts, 1, ROWS)
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    row = begin + (tile - (begin // ROWS + expert)) * ROWS + tl.arange(0, ROWS)
    return expert, row, tl.load(ends + expert)


@jit
def restored(
    acc: tl.tensor,
    row_scale: tl.tensor,
    rows: tl.tensor,
    valid: tl.tensor,
    scale: tl.tensor,
    n: tl.tensor,
    there: tl.tensor,
) -> tl.tensor:
    """Sums of products as numbers: those of integers are multiplied by the scales of their rows and columns."""
    if row_scale is not None:
        left = tl.load(row_scale + rows, mask=valid, other=0)
        right = tl.load(scale + n, mask=there, other=0).to(tl.float32)
        result = acc.to(tl.float32) * left[:, None] * right[None, :]
    else:
        result = acc
    return result


@Launcher
def _up_kernel(
    hidden: tl.tensor,
    weight: tl.tensor,
    order: tl.tensor,
    ends: tl.tensor,
    inner: tl.tensor,
    row_scale: tl.tensor,
    scale: tl.tensor,
    experts: tl.tensor,
    K: tl.tensor,
    N: tl.tensor,
    hidden_row: tl.tensor,
    weight_expert: tl.tensor,
    weight_row: tl.tensor,
    TOPK: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """The first linear of an expert and its activation: rows of `inner` lie in the order of the experts."""
    expert, row, end = rows_of_tile(ends, tl.program_id(1), experts, BLOCK_M)
    valid = row < end
    if tl.min(row, 0) < end:
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        token = (tl.load(order + row, mask=valid, other=0) // TOPK).to(tl.int64)
        x = hidden + token[:, None] * hidden_row + k[None, :]
        w = weight + expert.to(tl.int64) * weight_expert + k[None, :]
        w_gate = w + n.to(tl.int64)[:, None] * weight_row
        w_up = w + (n + N).to(tl.int64)[:, None] * weight_row
        kind: tl.constexpr = tl.float32 if row_scale is None else tl.int32
        gate = tl.full([BLOCK_M, BLOCK_N], 0, kind)
        up = tl.full([BLOCK_M, BLOCK_N], 0, kind)
        for start in range(0, K, BLOCK_K):
            within = (start + k < K)[None, :]
            there = (n < N)[:, None] & within
            left = tl.load(x + start, mask=valid[:, None] & within, other=0)
            first = tl.load(w_gate + start, mask=there, other=0)
            gate = tl.dot(left, tl.trans(first), gate, input_precision=PRECISION, out_dtype=kind)
            second = tl.load(w_up + start, mask=there, other=0)
            up = tl.dot(left, tl.trans(second), up, input_precision=PRECISION, out_dtype=kind)
        scales = scale if scale is None else scale + expert * 2 * N
        gate = restored(gate, row_scale, token, valid, scales, n, n < N)
        up = restored(up, row_scale, token, valid, scales, n + N, n < N)
        result = gated(gate, up).to(inner.dtype.element_ty)
        to = inner + row.to(tl.int64)[:, None] * N + n[None, :]
        tl.store(to, result, mask=valid[:, None] & (n < N)[None, :])


@Launcher
def _down_kernel(
    inner: tl.tensor,
    weight: tl.tensor,
    order: tl.tensor,
    ends: tl.tensor,
    shares: tl.tensor,
    row_scale: tl.tensor,
    scale: tl.tensor,
    experts: tl.tensor,
    K: tl.tensor,
    N: tl.tensor,
    weight_expert: tl.tensor,
    weight_row: tl.tensor,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """The second linear of an expert: `shares` has a row for each (token, choice) pair, in float32."""
    expert, row, end = rows_of_tile(ends, tl.program_id(1), experts, BLOCK_M)
    valid = row < end
    if tl.min(row, 0) < end:
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        x = inner + row.to(tl.int64)[:, None] * K + k[None, :]
        w = weight + expert.to(tl.int64) * weight_expert + n.to(tl.int64)[:, None] * weight_row + k[None, :]
        kind: tl.constexpr = tl.float32 if row_scale is None else tl.int32
        acc = tl.full([BLOCK_M, BLOCK_N], 0, kind)
        for start in range(0, K, BLOCK_K):
            within = (start + k < K)[None, :]
            left = tl.load(x + start, mask=valid[:, None] & within, other=0)
            right = tl.load(w + start, mask=(n < N)[:, None] & within, other=0)
            acc = tl.dot(left, tl.trans(right), acc, input_precision=PRECISION, out_dtype=kind)
        scales = scale if scale is None else scale + expert * N
        acc = restored(acc, row_scale, row, valid, scales, n, n < N)
        pair = tl.load(order + row, mask=valid, other=0).to(tl.int64)
        tl.store(shares + pair[:, None] * N + n[None, :], acc, mask=valid[:, None] & (n < N)[None, :])


@Launcher
def _sum_kernel(
    shares: tl.tensor,
    weights: tl.tensor,
    ids: tl.tensor,
    out: tl.tensor,
    first: tl.tensor,
    experts: tl.tensor,
    everywhere: tl.tensor,
    N: tl.tensor,
    topk: tl.tensor,
    RENORMALIZE: tl.constexpr,
    TOPK: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    """The weighted sum over the choices of one token; experts that are not here add nothing, those that are nowhere NaN."""
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    choice = tl.arange(0, TOPK)
    pair = token * topk + choice
    weight = tl.load(weights + pair, mask=choice < topk, other=0).to(tl.float32)
    if RENORMALIZE:
        weight = weight / tl.sum(weight, 0)
    expert = tl.load(ids + pair, mask=choice < topk, other=-1)
    here = (expert >= first) & (expert < first + experts)
    at = shares + pair[:, None] * N + n[None, :]
    values = tl.load(at, mask=here[:, None] & (n < N)[None, :], other=0)
    total = tl.sum(values * weight[:, None], 0)
    nowhere = (choice < topk) & ((expert < 0) | (expert >= everywhere))
    total = tl.where(tl.max(tl.where(nowhere, 1, 0), 0) > 0, float("nan"), total)
    tl.store(out + token * N + n, total.to(out.dtype.element_ty), mask=n < N)


def _inner_rows(weight: Tensor) -> Tensor:
    return weight if weight.stride(2) == 1 else weight.contiguous()


@kernel("fused_moe")
def fused_moe(
    hidden_states: Tensor, gate_up_weights: Tensor, down_weights: Tensor, routing: Routing
) -> Tensor:
    """Nothing is read back: a graph can hold it."""
    return _mixed(hidden_states, (gate_up_weights, None), (down_weights, None), routing)


@kernel("fused_moe_w8a8")
def fused_moe_w8a8(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    gate_up_scales: Tensor,
    down_weights: Tensor,
    down_scales: Tensor,
    routing: Routing,
) -> Tensor:
    up, down = (gate_up_weights, gate_up_scales.contiguous()), (down_weights, down_scales.contiguous())
    return _mixed(hidden_states, up, down, routing)


Weights = tuple[Tensor, Tensor | None]
"""The weights of all experts, and their scales if they have 8 bits."""


def _mixed(hidden_states: Tensor, up: Weights, down: Weights, routing: Routing) -> Tensor:
    topk_weights, topk_ids, renormalize, first_expert, num_experts = routing
    tokens, size = hidden_states.shape
    experts, _, width = down[0].shape
    topk, device = topk_ids.shape[1], hidden_states.device
    out = torch.empty((tokens, size), dtype=hidden_states.dtype, device=device)
    if not out.numel():
        return out
    count = tokens * topk
    if not count or not experts or not width:
        return out.zero_()
    ids, half = topk_ids.contiguous(), hidden_states.dtype in HALF_DTYPES or up[1] is not None
    order = torch.empty(count + experts, dtype=torch.int32, device=device)
    ends = order[count:]
    _order_kernel(
        (experts,), (ids, order, ends), (count, first_expert), SIZE=min(1024, power_above(count)), num_warps=4
    )
    tile = tables.experts(count, experts, half)
    tiles = count // tile.rows + experts
    shape: dict[str, Any] = {
        "PRECISION": "tf32" if half else "ieee", "BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "BLOCK_K": tile.depth,
        "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip
    rows, row_scale = _rows(hidden_states, up)
    weight = _inner_rows(up[0])
    inner = torch.empty((count, width), dtype=hidden_states.dtype, device=device)
    _up_kernel(
        (cdiv(width, tile.columns), tiles), (rows, weight, order, ends, inner, row_scale, up[1]),
        (experts, size, width, rows.stride(0), *weight.stride()[:2]), TOPK=topk, **shape,
    )  # fmt: skip
    rows, row_scale = _rows(inner, down)
    weight = _inner_rows(down[0])
    shares = torch.empty((count, size), dtype=torch.float32, device=device)
    _down_kernel(
        (cdiv(size, tile.columns), tiles), (rows, weight, order, ends, shares, row_scale, down[1]),
        (experts, width, size, *weight.stride()[:2]), **shape,
    )  # fmt: skip
    _sum_kernel(
        (tokens, cdiv(size, 512)), (shares, topk_weights.contiguous(), ids, out),
        (first_expert, experts, num_experts or experts, size, topk),
        RENORMALIZE=renormalize, TOPK=power_above(topk), SIZE=512, num_warps=4,
    )  # fmt: skip
    return out


def _rows(value: Tensor, weights: Weights) -> Weights:
    """What goes into a linear: as it is, or quantised with a scale for each row."""
    if weights[1] is None:
        return (value if value.stride(1) == 1 else value.contiguous()), None
    number, scales = kernel["dynamic_quant"](value, torch.int8)
    return number, scales
