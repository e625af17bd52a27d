"""Norms, rotary embedding and activations."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.errors import DlinferArgumentError
from dlinfer.ops.calling import OVERLOADS, call

_rms_norm = OVERLOADS["rms_norm"]
_add_rms_norm = OVERLOADS["add_rms_norm"]
_rms_norm_w8a8 = OVERLOADS["rms_norm_w8a8"]
_add_rms_norm_w8a8 = OVERLOADS["add_rms_norm_w8a8"]
_silu_and_mul = OVERLOADS["silu_and_mul"]
_rotary = OVERLOADS["apply_rotary_pos_emb"]
_interleaved = OVERLOADS["apply_rotary_pos_emb_interleaved"]
_transdata = OVERLOADS["transdata"]


def rms_norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The RMS norm of each row times weight."""
    return call(_rms_norm, hidden_states, weight, epsilon)


def add_rms_norm(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """(norm of the sum, the sum)."""
    return call(_add_rms_norm, hidden_states, residual, weight, epsilon)


def rms_norm_w8a8(
    hidden_states: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """(quantised norm, its scales)."""
    return call(_rms_norm_w8a8, hidden_states, weight, epsilon, quant_dtype)


def add_rms_norm_w8a8(
    hidden_states: Tensor,
    residual: Tensor,
    weight: Tensor,
    epsilon: float,
    quant_dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """(quantised norm of the sum, its scales, the sum)."""
    return call(_add_rms_norm_w8a8, hidden_states, residual, weight, epsilon, quant_dtype)


def silu_and_mul(input_tensor: Tensor, dim: int = -1) -> Tensor:
    """silu of the first half times the second half."""
    return call(_silu_and_mul, input_tensor, dim)


def apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor | None, sin: Tensor | None, *embedded: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Rotated query and key.

    The longer call form has two more arguments, tensors to write to; None there means query and key themselves.
    """
    if cos is None or sin is None:
        missing = "cos" if cos is None else "sin"
        raise DlinferArgumentError(
            "apply_rotary_pos_emb", missing, "is None, expected one row of the table for each token"
        )
    turned = call(_rotary, query, key, cos, sin)
    if not embedded:
        return turned
    if len(embedded) != 2:
        raise TypeError(f"apply_rotary_pos_emb takes 4 or 6 arguments, {4 + len(embedded)} were given")
    targets = [query if embedded[0] is None else embedded[0], key if embedded[1] is None else embedded[1]]
    for name, target, value in zip(("q_embed", "k_embed"), targets, turned, strict=True):
        if target.shape == value.shape:
            target.copy_(value)
        elif target.numel() == value.numel():
            target.copy_(value.view(target.shape))
        else:
            raise DlinferArgumentError(
                "apply_rotary_pos_emb", name, f"has shape {list(target.shape)}, expected {list(value.shape)}"
            )
    return targets[0], targets[1]


def apply_rotary_pos_emb_interleaved(
    states: Tensor, cos: Tensor, sin: Tensor, return_native_layout: bool = True
) -> Tensor:
    """Adjacent pairs rotated; with return_native_layout first elements of all pairs come first."""
    return call(_interleaved, states, cos, sin, return_native_layout)


def transdata(hidden_states: Tensor, transdata_type: int = 2) -> Tensor:
    """A copy in the layout that the vendor likes best."""
    return call(_transdata, hidden_states, transdata_type)
