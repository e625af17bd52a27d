"""Norms, activations and rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from dlinfer.interface.checks import upcast_dtype
from dlinfer.interface.kernels import reference
from dlinfer.reference.quantisation import quantised_rows

# ---- norms ----


def _norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Not rounded yet."""
    upcast = upcast_dtype(hidden_states)
    value = hidden_states.to(upcast)
    return value * torch.rsqrt(value.square().mean(-1, keepdim=True) + epsilon) * weight.to(upcast)


@reference("rms_norm")
def rms_norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return _norm(hidden_states, weight, epsilon).to(hidden_states.dtype)


@reference("add_rms_norm")
def add_rms_norm(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    total = hidden_states + residual
    return rms_norm(total, weight, epsilon), total


@reference("rms_norm_w8a8")
def rms_norm_w8a8(
    hidden_states: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return quantised_rows(_norm(hidden_states, weight, epsilon), quant_dtype)


@reference("add_rms_norm_w8a8")
def add_rms_norm_w8a8(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    total = hidden_states + residual
    return *rms_norm_w8a8(total, weight, epsilon, quant_dtype), total


# ---- activations ----


@reference("silu_and_mul")
def silu_and_mul(input_tensor: Tensor, dim: int = -1) -> Tensor:
    gate, up = input_tensor.to(upcast_dtype(input_tensor)).chunk(2, dim)
    return (silu(gate) * up).to(input_tensor.dtype)


# ---- rotary position embedding ----


@reference("apply_rotary_pos_emb")
def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return _rotated(query, cos, sin), _rotated(key, cos, sin)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    upcast, rotary = upcast_dtype(states), cos.shape[-1]
    # One row of the tables for each token, the same for all heads.
    rows = [*states.shape[:-2], 1, rotary]
    cos, sin = cos.to(upcast).reshape(rows), sin.to(upcast).reshape(rows)
    turned = states[..., :rotary].to(upcast)
    first, second = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-second, first), -1) * sin
    return torch.cat((turned.to(states.dtype), states[..., rotary:]), -1)


@reference("apply_rotary_pos_emb_interleaved")
def apply_rotary_pos_emb_interleaved(
    states: Tensor, cos: Tensor, sin: Tensor, native_layout: bool = True
) -> Tensor:
    upcast = upcast_dtype(states)
    rows = [states.shape[0], *[1] * (states.dim() - 2), states.shape[-1]]
    cos_first, cos_second = cos.to(upcast).reshape(rows).chunk(2, -1)
    sin_first, sin_second = sin.to(upcast).reshape(rows).chunk(2, -1)
    value = states.to(upcast)
    first, second = value[..., 0::2], value[..., 1::2]
    turned = (first * cos_first - second * sin_first, second * cos_second + first * sin_second)
    joined = torch.cat(turned, -1) if native_layout else torch.stack(turned, -1).flatten(-2)
    return joined.to(states.dtype)
