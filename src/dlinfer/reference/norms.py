"""RMS normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.interface.precision import wide
from dlinfer.reference.quantisation import quantised_rows


def _norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Not rounded yet."""
    kind = wide(hidden_states)
    value = hidden_states.to(kind)
    return value * torch.rsqrt(value.square().mean(-1, keepdim=True) + epsilon) * weight.to(kind)


def rms_norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`rms_norm` of the interface."""
    return _norm(hidden_states, weight, epsilon).to(hidden_states.dtype)


def add_rms_norm(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` of the interface."""
    total = hidden_states + residual
    return rms_norm(total, weight, epsilon), total


def rms_norm_w8a8(
    hidden_states: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`rms_norm_w8a8` of the interface."""
    return quantised_rows(_norm(hidden_states, weight, epsilon), quant_dtype)


def add_rms_norm_w8a8(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """`add_rms_norm_w8a8` of the interface."""
    total = hidden_states + residual
    return *rms_norm_w8a8(total, weight, epsilon, quant_dtype), total
