"""Samples: mixtures of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.conformance.sampling import Arguments, Draw, Samples


def _gate(draw: Draw, label: str) -> Arguments:
    experts = draw.choice((8, 16, 60)) if label != "groups" else draw.choice((8, 16, 64))
    topk = draw.choice((1, 2, 4)) if label != "groups" else 4
    lead = draw.choice(((1,), (7,), (2, 5), (33,)))
    return {
        "router_logits": draw.normal(*lead, experts, scale=20.0 if label == "far apart" else 1.0),
        "topk": experts if label == "all experts" else topk,
        "n_groups": draw.choice((2, 4)) if label == "groups" else -1,
        "renormalize": label == "renormalised",
    }


def _routing(draw: Draw, label: str, tokens: int, experts: int) -> tuple[Tensor, Tensor]:
    topk = 1 if label == "one expert each" else min(experts, draw.choice((2, 3)))
    ids = torch.stack([draw.permutation(experts)[:topk] for _ in range(tokens)]) if tokens else None
    if ids is None:
        ids = torch.zeros(0, topk, dtype=torch.int64)
    if label == "all to one expert":
        ids = torch.full_like(ids, experts - 1)
    return draw.uniform(*ids.shape, low=0.05, dtype=torch.float32), ids.to(draw.index_dtype())


def _sizes(draw: Draw, label: str) -> tuple[int, int, int, int, int, int]:
    """(tokens, hidden, intermediate, experts in all, experts here, first of them)."""
    # Of many tokens every expert gets more than kernels for few rows take.
    fixed = {"no token": 0, "many tokens": 150}
    tokens = fixed[label] if label in fixed else draw.choice((1, 4, 19))
    hidden, inner = draw.choice(((16, 8), (64, 32), (24, 48)))
    experts = draw.choice((2, 4, 8))
    if label == "part of the experts":
        return tokens, hidden, inner, experts, experts // 2, draw.choice((0, experts // 2))
    return tokens, hidden, inner, experts, experts, 0


def _moe(draw: Draw, label: str) -> Arguments:
    tokens, hidden, inner, experts, here, first = _sizes(draw, label)
    weights, ids = _routing(draw, label, tokens, experts)
    return {
        "hidden_states": draw.normal(tokens, hidden),
        "gate_up_weights": draw.normal(here, 2 * inner, hidden, scale=hidden**-0.5),
        "down_weights": draw.normal(here, hidden, inner, scale=inner**-0.5),
        "topk_weights": weights.to(draw.dtype) if label == "weights of the dtype" else weights,
        "topk_ids": ids,
        "renormalize": label == "renormalised",
        "first_expert": first,
        "num_experts": experts if here != experts else 0,
    }


def _moe_w8a8(draw: Draw, label: str) -> Arguments:
    tokens, hidden, inner, experts, here, first = _sizes(draw, label)
    weights, ids = _routing(draw, label, tokens, experts)
    gate_up_scales = draw.uniform(here, 2 * inner, low=0.001, high=0.004)
    down_scales = draw.uniform(here, hidden, low=0.001, high=0.004)
    if label == "scales of three dimensions":
        gate_up_scales, down_scales = gate_up_scales.unsqueeze(-1), down_scales.unsqueeze(-1)
    return {
        "hidden_states": draw.normal(tokens, hidden),
        "gate_up_weights": draw.integers(-128, 128, here, 2 * inner, hidden, dtype=torch.int8),
        "gate_up_scales": gate_up_scales,
        "down_weights": draw.integers(-128, 128, here, hidden, inner, dtype=torch.int8),
        "down_scales": down_scales,
        "topk_weights": weights,
        "topk_ids": ids,
        "renormalize": label == "renormalised",
        "first_expert": first,
        "num_experts": experts if here != experts else 0,
    }


_ROUTES = (
    "plain",
    "renormalised",
    "one expert each",
    "all to one expert",
    "part of the experts",
    "no token",
    "many tokens",
)
SAMPLES = {
    "moe_gating_topk_softmax": Samples(
        105, ("plain", "groups", "renormalised", "far apart", "all experts"), _gate
    ),
    "fused_moe": Samples(144, (*_ROUTES, "weights of the dtype"), _moe),
    "fused_moe_w8a8": Samples(120, (*_ROUTES, "scales of three dimensions"), _moe_w8a8),
}
