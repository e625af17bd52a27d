"""Norms, rotary embedding and activations."""

# mypy: disable-error-code="empty-body"
# Functions without a body are derived from the schema.

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.interface.sharing import lies_over_itself, overlap
from dlinfer.ops.calling import OVERLOADS, derived, explained
from dlinfer.ops.lengths import is_tensor

_rms_norm_w8a8 = OVERLOADS["rms_norm_w8a8"]
_add_rms_norm_w8a8 = OVERLOADS["add_rms_norm_w8a8"]
_rotary = OVERLOADS["apply_rotary_pos_emb"]
_interleaved = OVERLOADS["apply_rotary_pos_emb_interleaved"]


@derived
def rms_norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The RMS norm of each row times weight."""


@derived
def add_rms_norm(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """(norm of the sum, the sum)."""


@explained("rms_norm_w8a8")
def rms_norm_w8a8(
    hidden_states: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """(quantised norm, its scales)."""
    return _rms_norm_w8a8(hidden_states, weight, epsilon, quant_dtype)


@explained("add_rms_norm_w8a8")
def add_rms_norm_w8a8(
    hidden_states: Tensor,
    residual: Tensor,
    weight: Tensor,
    epsilon: float,
    quant_dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """(quantised norm of the sum, its scales, the sum)."""
    return _add_rms_norm_w8a8(hidden_states, residual, weight, epsilon, quant_dtype)


@derived
def silu_and_mul(input_tensor: Tensor, dim: int = -1) -> Tensor:
    """silu of the first half times the second half."""


@explained("apply_rotary_pos_emb")
def apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor | None, sin: Tensor | None, *embedded: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Rotated query and key.

    The longer call form has two more arguments, tensors to write to; None there means query and key themselves.
    """
    if cos is None or sin is None:
        missing = "cos" if cos is None else "sin"
        raise wrong(missing, "is None, expected one row of the table for each token")
    if not embedded:
        return _rotary(query, key, cos, sin)
    if len(embedded) != 2:
        raise TypeError(f"apply_rotary_pos_emb takes 4 or 6 arguments, {4 + len(embedded)} were given")
    targets = (query if embedded[0] is None else embedded[0], key if embedded[1] is None else embedded[1])
    _check_targets(*targets, query, key)
    for target, value in zip(targets, _rotary(query, key, cos, sin), strict=True):
        target.copy_(value if target.shape == value.shape else value.view(target.shape))
    return targets


def _check_targets(q_embed: Tensor, k_embed: Tensor, query: Tensor, key: Tensor) -> None:
    """Where rotated states go: as many elements, of the same kind, each in memory of its own."""
    for argument, target, name, states in (
        ("q_embed", q_embed, "query", query),
        ("k_embed", k_embed, "key", key),
    ):
        is_tensor(argument, target)
        if target.numel() != states.numel():
            text = f"has shape {list(target.shape)}, expected {list(states.shape)} like {name}"
        elif target.dtype != states.dtype or target.device != states.device or target.layout != torch.strided:
            text = f"is {target.dtype} on {target.device}, expected {states.dtype} on {states.device} like {name}"
        elif not torch.compiler.is_compiling() and lies_over_itself(target):
            text = f"has strides {list(target.stride())}: elements share memory, expected memory of its own"
        else:
            continue
        raise wrong(argument, text)
    if not torch.compiler.is_compiling() and overlap(q_embed, k_embed):
        raise wrong("k_embed", "overlaps q_embed in memory, expected memory of its own")


@explained("apply_rotary_pos_emb_interleaved")
def apply_rotary_pos_emb_interleaved(
    states: Tensor, cos: Tensor, sin: Tensor, return_native_layout: bool = True
) -> Tensor:
    """Adjacent pairs rotated; with return_native_layout first elements of all pairs come first."""
    return _interleaved(states, cos, sin, return_native_layout)


@derived
def transdata(hidden_states: Tensor, transdata_type: int = 2) -> Tensor:
    """A copy in the layout that the vendor likes best."""
