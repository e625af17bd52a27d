"""Mixtures of experts: tokens are put in the order of their experts on the device, then each expert's tiles are multiplied."""

from __future__ import annotations

import torch
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.vendors.triton import tables
from dlinfer.vendors.triton.activation import gated
from dlinfer.vendors.triton.arithmetic import find_group
from dlinfer.vendors.triton.language import HALVES, cdiv, power_above
from dlinfer.vendors.triton.launching import Launcher


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


@Launcher
def _up_kernel(
    hidden: tl.tensor,
    weight: tl.tensor,
    order: tl.tensor,
    ends: tl.tensor,
    inner: tl.tensor,
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
    tile = tl.program_id(1)
    expert = find_group(ends, tile, experts, 1, BLOCK_M)
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends + expert)
    row = begin + (tile - (begin // BLOCK_M + expert)) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = row < end
    if tl.min(row, 0) < end:
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        token = (tl.load(order + row, mask=valid, other=0) // TOPK).to(tl.int64)
        x = hidden + token[:, None] * hidden_row + k[None, :]
        w = weight + expert.to(tl.int64) * weight_expert + k[None, :]
        w_gate = w + n.to(tl.int64)[:, None] * weight_row
        w_up = w + (n + N).to(tl.int64)[:, None] * weight_row
        gate = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
        up = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
        for start in range(0, K, BLOCK_K):
            within = (start + k < K)[None, :]
            there = (n < N)[:, None] & within
            left = tl.load(x + start, mask=valid[:, None] & within, other=0)
            first = tl.load(w_gate + start, mask=there, other=0)
            gate = tl.dot(left, tl.trans(first), gate, input_precision=PRECISION)
            second = tl.load(w_up + start, mask=there, other=0)
            up = tl.dot(left, tl.trans(second), up, input_precision=PRECISION)
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
    tile = tl.program_id(1)
    expert = find_group(ends, tile, experts, 1, BLOCK_M)
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends + expert)
    row = begin + (tile - (begin // BLOCK_M + expert)) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = row < end
    if tl.min(row, 0) < end:
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        x = inner + row.to(tl.int64)[:, None] * K + k[None, :]
        w = weight + expert.to(tl.int64) * weight_expert + n.to(tl.int64)[:, None] * weight_row + k[None, :]
        acc = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
        for start in range(0, K, BLOCK_K):
            within = (start + k < K)[None, :]
            left = tl.load(x + start, mask=valid[:, None] & within, other=0)
            right = tl.load(w + start, mask=(n < N)[:, None] & within, other=0)
            acc = tl.dot(left, tl.trans(right), acc, input_precision=PRECISION)
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


def fused_moe(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    down_weights: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    renormalize: bool = False,
    first_expert: int = 0,
    num_experts: int = 0,
) -> Tensor:
    """`fused_moe` of the interface. Nothing is read back: a graph can hold it."""
    tokens, size = hidden_states.shape
    experts, topk, device = gate_up_weights.shape[0], topk_ids.shape[1], hidden_states.device
    width = down_weights.shape[2]
    out = torch.empty((tokens, size), dtype=hidden_states.dtype, device=device)
    if not out.numel():
        return out
    count = tokens * topk
    if not count or not experts or not width:
        return out.zero_()
    hidden = hidden_states if hidden_states.stride(1) == 1 else hidden_states.contiguous()
    gate_up, down = _inner_rows(gate_up_weights), _inner_rows(down_weights)
    ids, half = topk_ids.contiguous(), hidden_states.dtype in HALVES
    precision = "tf32" if half else "ieee"
    order = torch.empty(count + experts, dtype=torch.int32, device=device)
    ends = order[count:]
    _order_kernel(
        (experts,), (ids, order, ends), (count, first_expert), SIZE=min(1024, power_above(count)), num_warps=4
    )
    tile = tables.experts(count, experts, half)
    tiles = count // tile.rows + experts
    inner = torch.empty((count, width), dtype=hidden_states.dtype, device=device)
    _up_kernel(
        (cdiv(width, tile.columns), tiles), (hidden, gate_up, order, ends, inner),
        (experts, size, width, hidden.stride(0), *gate_up.stride()[:2]),
        TOPK=topk, PRECISION=precision, BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    shares = torch.empty((count, size), dtype=torch.float32, device=device)
    _down_kernel(
        (cdiv(size, tile.columns), tiles), (inner, down, order, ends, shares), (experts, width, size, *down.stride()[:2]),
        PRECISION=precision, BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    _sum_kernel(
        (tokens, cdiv(size, 512)), (shares, topk_weights.contiguous(), ids, out),
        (first_expert, experts, num_experts or experts, size, topk),
        RENORMALIZE=renormalize, TOPK=power_above(topk), SIZE=512, num_warps=4,
    )  # fmt: skip
    return out
