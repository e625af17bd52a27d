"""Routing tokens to experts, and the experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dlinfer.interface.checks import upcast_dtype
from dlinfer.interface.declaration import Routing
from dlinfer.interface.kernels import reference
from dlinfer.reference.layers import silu_and_mul
from dlinfer.reference.matmul import product
from dlinfer.reference.quantisation import quantised_rows


@reference("moe_gating_topk_softmax")
def moe_gating_topk_softmax(
    router_logits: Tensor, topk: int, n_groups: int = -1, renormalize: bool = False
) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(router_logits.to(upcast_dtype(router_logits)), -1)
    if n_groups > 0:
        size = weights.shape[-1] // n_groups
        best = weights.unflatten(-1, (n_groups, size)).topk(topk // n_groups, -1)
        offsets = torch.arange(0, n_groups * size, size, device=weights.device).unsqueeze(-1)
        chosen, ids = best.values.flatten(-2), (best.indices + offsets).flatten(-2)
    else:
        chosen, ids = weights.topk(topk, -1)
    return (chosen / chosen.sum(-1, keepdim=True) if renormalize else chosen), ids


@reference("fused_moe")
def fused_moe(
    hidden_states: Tensor, gate_up_weights: Tensor, down_weights: Tensor, routing: Routing
) -> Tensor:
    """What lies between the two linears is rounded to the dtype of hidden_states."""
    upcast = upcast_dtype(hidden_states)

    def expert(number: int, tokens: Tensor) -> Tensor:
        inner = tokens.to(upcast) @ gate_up_weights[number].to(upcast).mT
        inner = silu_and_mul(inner).to(tokens.dtype)
        return inner.to(upcast) @ down_weights[number].to(upcast).mT

    return _combined(hidden_states, routing, gate_up_weights.shape[0], expert)


@reference("fused_moe_w8a8")
def fused_moe_w8a8(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    gate_up_scales: Tensor,
    down_weights: Tensor,
    down_scales: Tensor,
    routing: Routing,
) -> Tensor:
    upcast = upcast_dtype(hidden_states)

    def linear(tokens: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        number, rows = quantised_rows(tokens, torch.int8)
        return product(number, weight, upcast) * rows.unsqueeze(-1) * scale.to(upcast).reshape(-1)

    def expert(number: int, tokens: Tensor) -> Tensor:
        inner = silu_and_mul(linear(tokens, gate_up_weights[number], gate_up_scales[number])).to(tokens.dtype)
        return linear(inner, down_weights[number], down_scales[number])

    return _combined(hidden_states, routing, gate_up_weights.shape[0], expert)


def _combined(
    hidden_states: Tensor, routing: Routing, count: int, expert: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """Each expert is asked once, for all its tokens."""
    weights = routing.topk_weights.to(upcast_dtype(hidden_states))
    if routing.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    result = torch.zeros(hidden_states.shape, dtype=weights.dtype, device=hidden_states.device)
    local = routing.topk_ids - routing.first_expert
    for number in local.unique().tolist():
        if 0 <= number < count:
            tokens, choices = (local == number).nonzero(as_tuple=True)
            share = weights[tokens, choices].unsqueeze(-1)
            result.index_add_(0, tokens, expert(number, hidden_states[tokens]) * share)
    return result.to(hidden_states.dtype)
