"""Gated activations."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import silu

from dlinfer.interface.precision import wide


def silu_and_mul(input_tensor: Tensor, dim: int = -1) -> Tensor:
    """`silu_and_mul` of the interface."""
    gate, up = input_tensor.to(wide(input_tensor)).chunk(2, dim)
    return (silu(gate) * up).to(input_tensor.dtype)
