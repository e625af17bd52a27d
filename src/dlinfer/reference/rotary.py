"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.interface.precision import wide


def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb` of the interface."""
    return _rotated(query, cos, sin), _rotated(key, cos, sin)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    kind, rotary = wide(states), cos.shape[-1]
    # One row of the tables for each token, the same for all heads.
    rows = [*states.shape[:-2], 1, rotary]
    cos, sin = cos.to(kind).reshape(rows), sin.to(kind).reshape(rows)
    turned = states[..., :rotary].to(kind)
    first, second = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-second, first), -1) * sin
    return torch.cat((turned.to(states.dtype), states[..., rotary:]), -1)


def apply_rotary_pos_emb_interleaved(
    states: Tensor, cos: Tensor, sin: Tensor, native_layout: bool = True
) -> Tensor:
    """`apply_rotary_pos_emb_interleaved` of the interface."""
    kind = wide(states)
    rows = [states.shape[0], *[1] * (states.dim() - 2), states.shape[-1]]
    cos_first, cos_second = cos.to(kind).reshape(rows).chunk(2, -1)
    sin_first, sin_second = sin.to(kind).reshape(rows).chunk(2, -1)
    value = states.to(kind)
    first, second = value[..., 0::2], value[..., 1::2]
    turned = (first * cos_first - second * sin_first, second * cos_second + first * sin_second)
    joined = torch.cat(turned, -1) if native_layout else torch.stack(turned, -1).flatten(-2)
    return joined.to(states.dtype)
