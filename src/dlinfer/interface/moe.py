"""Declarations: routing tokens to experts, and the experts."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.interface.checks import (
    FLOATS,
    INTEGERS,
    fake_hidden,
    has_dtype,
    has_rank,
    has_shape,
    same_device,
    same_dtype,
    upcast_dtype,
)
from dlinfer.interface.declaration import Operator, Routing


def _check_gate(router_logits: Tensor, topk: int, n_groups: int) -> None:
    has_dtype("router_logits", router_logits)
    if not router_logits.dim():
        raise wrong("router_logits", "is a single number, expected [..., experts]")
    experts = router_logits.shape[-1]
    if not 0 < topk <= experts:
        raise wrong("topk", f"is {topk}, expected 1 to {experts}, the number of experts of router_logits")
    if n_groups > 0 and (experts % n_groups or topk % n_groups):
        raise wrong(
            "n_groups",
            f"is {n_groups}, which does not divide {experts} experts of router_logits and topk {topk}",
        )
    if n_groups == 0:
        raise wrong("n_groups", "is 0, expected at least 1, or -1 for no groups")


def _fake_gate(router_logits: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    shape = [*router_logits.shape[:-1], topk]
    return router_logits.new_empty(shape, dtype=upcast_dtype(router_logits)), router_logits.new_empty(
        shape, dtype=torch.int64
    )


def _check_routing(hidden_states: Tensor, routing: Routing) -> None:
    topk_weights, topk_ids = routing.topk_weights, routing.topk_ids
    has_dtype("hidden_states", hidden_states)
    has_rank("hidden_states", hidden_states, 2)
    has_rank("topk_ids", topk_ids, 2)
    has_dtype("topk_ids", topk_ids, INTEGERS)
    has_shape("topk_ids", topk_ids, [hidden_states.shape[0], None], "tokens of hidden_states, topk")
    has_shape("topk_weights", topk_weights, topk_ids.shape, "the shape of topk_ids")
    has_dtype("topk_weights", topk_weights, FLOATS)
    same_device("hidden_states", hidden_states, "topk_ids", topk_ids)
    same_device("hidden_states", hidden_states, "topk_weights", topk_weights)


def _check_experts(hidden_states: Tensor, gate_up_weights: Tensor, down_weights: Tensor) -> None:
    has_rank("gate_up_weights", gate_up_weights, 3)
    experts, double, hidden = gate_up_weights.shape
    if hidden != hidden_states.shape[1] or double % 2:
        raise wrong(
            "gate_up_weights",
            f"has shape {list(gate_up_weights.shape)}, expected [experts, 2 * intermediate, {hidden_states.shape[1]}]"
            " for hidden_states",
        )
    shape = [experts, hidden_states.shape[1], double // 2]
    has_shape("down_weights", down_weights, shape, "experts, hidden and intermediate size of gate_up_weights")
    same_device("hidden_states", hidden_states, "gate_up_weights", gate_up_weights)
    same_device("hidden_states", hidden_states, "down_weights", down_weights)


def _check_moe(
    hidden_states: Tensor, gate_up_weights: Tensor, down_weights: Tensor, routing: Routing
) -> None:
    _check_routing(hidden_states, routing)
    _check_experts(hidden_states, gate_up_weights, down_weights)
    same_dtype("hidden_states", hidden_states, "gate_up_weights", gate_up_weights)
    same_dtype("hidden_states", hidden_states, "down_weights", down_weights)
    _check_part(gate_up_weights, routing)


def _check_part(gate_up_weights: Tensor, routing: Routing) -> None:
    first_expert, num_experts = routing.first_expert, routing.num_experts
    total = num_experts or gate_up_weights.shape[0]
    if num_experts < 0:
        raise wrong("num_experts", f"is {num_experts}, expected how many there are in all, or 0")
    if not 0 <= first_expert <= total - gate_up_weights.shape[0]:
        raise wrong(
            "first_expert",
            f"is {first_expert}: {gate_up_weights.shape[0]} experts from there are not within num_experts, {total}",
        )


def _moe_values(gate_up_weights: Tensor, topk_ids: Tensor, num_experts: int) -> None:
    experts = num_experts or gate_up_weights.shape[0]
    if not topk_ids.numel():
        return
    low, high = (int(value) for value in topk_ids.aminmax())
    if low < 0 or high >= experts:
        raise wrong(
            "topk_ids", f"holds {low if low < 0 else high}, expected 0 to {experts - 1}, an expert's number"
        )


def _check_moe_w8a8(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    gate_up_scales: Tensor,
    down_weights: Tensor,
    down_scales: Tensor,
    routing: Routing,
) -> None:
    _check_routing(hidden_states, routing)
    _check_experts(hidden_states, gate_up_weights, down_weights)
    for weight_name, weight, name, scale in (
        ("gate_up_weights", gate_up_weights, "gate_up_scales", gate_up_scales),
        ("down_weights", down_weights, "down_scales", down_scales),
    ):
        has_dtype(weight_name, weight, (torch.int8,))
        has_dtype(name, scale, FLOATS)
        same_device(weight_name, weight, name, scale)
        experts, rows, _ = weight.shape
        if scale.numel() != experts * rows or not scale.dim() or scale.shape[0] != experts:
            raise wrong(name, f"has shape {list(scale.shape)}, expected [{experts}, {rows}]")
    _check_part(gate_up_weights, routing)


_ROUTING = {
    "hidden_states": "[tokens, hidden], floating",
    "topk_weights": "[tokens, topk], floating",
    "topk_ids": "[tokens, topk], int32 or int64: numbers of experts among all",
    "renormalize": "weights of a token are divided by their sum first",
    "first_expert": "the number, among all, of the first expert that is here",
    "num_experts": "how many there are in all; 0: those that are here",
}

OPERATORS = (
    Operator(
        name="moe_gating_topk_softmax",
        schema="(Tensor router_logits, int topk, int n_groups=-1, bool renormalize=False) -> (Tensor, Tensor)",
        summary="The softmax of the logits (in float32) and its largest elements: topk of all, or topk / n_groups in each of"
        " n_groups groups of neighbouring experts, group after group.",
        shapes={
            "router_logits": "[..., experts], floating",
            "topk": "experts for each token",
            "n_groups": "groups; -1: none",
            "renormalize": "chosen weights are divided by their sum",
        },
        results="(weights [..., topk] in float32, numbers of experts [..., topk] in int64), largest first",
        check=_check_gate,
        fake=_fake_gate,
        tolerance="positions",
    ),
    Operator(
        name="fused_moe",
        schema="(Tensor hidden_states, Tensor gate_up_weights, Tensor down_weights, Tensor topk_weights, Tensor topk_ids,"
        " bool renormalize=False, int first_expert=0, int num_experts=0) -> Tensor",
        summary="The weighted sum of each token's experts; an expert is linear, silu_and_mul, linear. Experts that are not here"
        " (expert parallelism) add nothing.",
        shapes={
            "gate_up_weights": "[experts here, 2 * intermediate, hidden], dtype of hidden_states",
            "down_weights": "[experts here, hidden, intermediate], dtype of hidden_states",
            **_ROUTING,
        },
        results="like hidden_states",
        check=_check_moe,
        fake=fake_hidden,
        tolerance="sum",
        values=_moe_values,
        indices=("topk_ids",),
    ),
    Operator(
        name="fused_moe_w8a8",
        schema="(Tensor hidden_states, Tensor gate_up_weights, Tensor gate_up_scales, Tensor down_weights,"
        " Tensor down_scales, Tensor topk_weights, Tensor topk_ids, bool renormalize=False, int first_expert=0,"
        " int num_experts=0) -> Tensor",
        summary="`fused_moe` with int8 weights; tokens, and what goes into the second linear, are quantised per token as"
        " `dynamic_quant` does.",
        shapes={
            "gate_up_weights": "[experts here, 2 * intermediate, hidden], int8",
            "gate_up_scales": "[experts here, 2 * intermediate] or with a last 1, floating",
            "down_weights": "[experts here, hidden, intermediate], int8",
            "down_scales": "[experts here, hidden] or with a last 1, floating",
            **_ROUTING,
        },
        results="like hidden_states",
        check=_check_moe_w8a8,
        fake=fake_hidden,
        tolerance="sum",
        values=_moe_values,
        indices=("topk_ids",),
    ),
)
