"""Rotary position embedding: heads of query and key in one launch."""

from __future__ import annotations

import torch
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.vendors.triton.language import cdiv, power_above
from dlinfer.vendors.triton.launching import Launcher

# Elements that one program turns.
_ELEMENTS = 1024


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


def _new(states: Tensor) -> Tensor:
    return torch.empty_like(states, memory_format=torch.contiguous_format)


def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb` of the interface."""
    q, k = _heads_of(query), _heads_of(key)
    query_out, key_out = _new(query), _new(key)
    tokens, heads, size = q.shape
    kv_heads, half = k.shape[1], cos.shape[-1] // 2
    if tokens and heads + kv_heads:
        width = power_above(half)
        each = max(1, min(power_above(heads + kv_heads), _ELEMENTS // width))
        rest = size - 2 * half
        _halves_kernel(
            (tokens, cdiv(heads + kv_heads, each)), (q, k, cos.contiguous(), sin.contiguous(), query_out, key_out),
            (heads, kv_heads, size, half, *q.stride()[:2], *k.stride()[:2]),
            HEADS=each, HALF=width, REST=power_above(rest) if rest else 0, num_warps=4,
        )  # fmt: skip
    return query_out, key_out


def apply_rotary_pos_emb_interleaved(
    states: Tensor, cos: Tensor, sin: Tensor, native_layout: bool = True
) -> Tensor:
    """`apply_rotary_pos_emb_interleaved` of the interface."""
    out = _new(states)
    tokens, size = states.shape[0], states.shape[-1]
    rows = states.reshape(tokens, -1, size) if states.numel() else states
    if states.numel():
        rows = rows if rows.stride(2) == 1 else rows.contiguous()
        heads, half = rows.shape[1], size // 2
        width = power_above(half)
        each = max(1, min(power_above(heads), _ELEMENTS // width))
        _pairs_kernel(
            (tokens, cdiv(heads, each)), (rows, cos.contiguous(), sin.contiguous(), out), (heads, half, *rows.stride()[:2]),
            NATIVE=native_layout, HEADS=each, HALF=width, num_warps=4,
        )  # fmt: skip
    return out
