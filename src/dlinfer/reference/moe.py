"""Routing tokens to experts, and the experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dlinfer.interface.precision import wide
from dlinfer.reference.activation import silu_and_mul
from dlinfer.reference.quantisation import quantised_rows
from dlinfer.reference.quantised import product


def moe_gating_topk_softmax(
    router_logits: Tensor, topk: int, n_groups: int = -1, renormalize: bool = False
) -> tuple[Tensor, Tensor]:
    """`moe_gating_topk_softmax` of the interface."""
    weights = torch.softmax(router_logits.to(wide(router_logits)), -1)
    if n_groups > 0:
        size = weights.shape[-1] // n_groups
        best = weights.unflatten(-1, (n_groups, size)).topk(topk // n_groups, -1)
        offsets = torch.arange(0, n_groups * size, size, device=weights.device).unsqueeze(-1)
        chosen, ids = best.values.flatten(-2), (best.indices + offsets).flatten(-2)
    else:
        chosen, ids = weights.topk(topk, -1)
    return (chosen / chosen.sum(-1, keepdim=True) if renormalize else chosen), ids


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
    """`fused_moe` of the interface; what lies between the two linears is rounded to the dtype of hidden_states."""
    kind = wide(hidden_states)

    def expert(number: int, tokens: Tensor) -> Tensor:
        inner = tokens.to(kind) @ gate_up_weights[number].to(kind).mT
        inner = silu_and_mul(inner).to(tokens.dtype)
        return inner.to(kind) @ down_weights[number].to(kind).mT

    weights = _weights(topk_weights, renormalize, kind)
    return _combined(hidden_states, weights, topk_ids, first_expert, gate_up_weights.shape[0], expert)


def fused_moe_w8a8(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    gate_up_scales: Tensor,
    down_weights: Tensor,
    down_scales: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    renormalize: bool = False,
    first_expert: int = 0,
    num_experts: int = 0,
) -> Tensor:
    """`fused_moe_w8a8` of the interface."""
    kind = wide(hidden_states)

    def linear(tokens: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        number, rows = quantised_rows(tokens, torch.int8)
        return product(number, weight, kind) * rows.unsqueeze(-1) * scale.to(kind).reshape(-1)

    def expert(number: int, tokens: Tensor) -> Tensor:
        inner = silu_and_mul(linear(tokens, gate_up_weights[number], gate_up_scales[number])).to(tokens.dtype)
        return linear(inner, down_weights[number], down_scales[number])

    weights = _weights(topk_weights, renormalize, kind)
    return _combined(hidden_states, weights, topk_ids, first_expert, gate_up_weights.shape[0], expert)


def _weights(topk_weights: Tensor, renormalize: bool, kind: torch.dtype) -> Tensor:
    weights = topk_weights.to(kind)
    return weights / weights.sum(-1, keepdim=True) if renormalize else weights


def _combined(
    hidden_states: Tensor,
    weights: Tensor,
    topk_ids: Tensor,
    first: int,
    count: int,
    expert: Callable[[int, Tensor], Tensor],
) -> Tensor:
    """Each expert is asked once, for all its tokens."""
    result = torch.zeros(hidden_states.shape, dtype=weights.dtype, device=hidden_states.device)
    local = topk_ids - first
    for number in local.unique().tolist():
        if 0 <= number < count:
            tokens, places = (local == number).nonzero(as_tuple=True)
            share = weights[tokens, places].unsqueeze(-1)
            result.index_add_(0, tokens, expert(number, hidden_states[tokens]) * share)
    return result.to(hidden_states.dtype)
