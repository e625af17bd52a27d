"""Mixtures of experts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.ops.calling import OVERLOADS, explained
from dlinfer.ops.matmul import reduced
from dlinfer.utils.type_annotation import MoeMetadata

_gate = OVERLOADS["moe_gating_topk_softmax"]
_moe = OVERLOADS["fused_moe"]
_moe_w8a8 = OVERLOADS["fused_moe_w8a8"]


@explained("moe_gating_topk_softmax")
def moe_gating_topk_softmax(
    router_logits: Tensor, topk: int, moe_metadata: MoeMetadata | None = None, *, renormalize: bool = False
) -> tuple[Tensor, Tensor]:
    """(weights, numbers of experts), the largest first; in groups if the metadata says so."""
    groups = -1 if moe_metadata is None else moe_metadata.router_n_groups
    return _gate(router_logits, topk, groups, renormalize)


@explained("fused_moe")
def fused_moe(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    down_weights: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    topk: int,
    renormalize: bool,
    moe_metadata: MoeMetadata | None = None,
    chunked_moe_layout: Any = None,
) -> Tensor:
    """The weighted sum of each token's experts; with expert parallelism over all ranks of the group."""
    if chunked_moe_layout is not None:
        raise wrong("chunked_moe_layout", "is given, expected None: experts are stored one after the other")
    return _experts(
        _moe, hidden_states, (gate_up_weights, down_weights), topk_weights, topk_ids, topk, renormalize,
        moe_metadata
    )  # fmt: skip


@explained("fused_moe_w8a8")
def fused_moe_w8a8(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    gate_up_scales: Tensor,
    down_weights: Tensor,
    down_scales: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    topk: int,
    renormalize: bool,
    moe_metadata: MoeMetadata | None = None,
) -> Tensor:
    """`fused_moe` with int8 weights and activations."""
    weights = (gate_up_weights, gate_up_scales, down_weights, down_scales)
    return _experts(
        _moe_w8a8, hidden_states, weights, topk_weights, topk_ids, topk, renormalize, moe_metadata
    )


def _experts(
    overload: Any,
    hidden_states: Tensor,
    weights: tuple[Tensor, ...],
    topk_weights: Tensor,
    topk_ids: Tensor,
    topk: int,
    renormalize: bool,
    metadata: MoeMetadata | None,
) -> Tensor:
    if topk_ids.dim() == 0 or topk_ids.shape[-1] != topk:
        raise wrong(
            "topk", f"is {topk}, but topk_ids has shape {list(topk_ids.shape)}: expected [tokens, {topk}]"
        )
    here, first, total = len(weights[0]) if weights[0].dim() else 0, 0, 0
    parallel = metadata is not None and metadata.ep_size > 1
    if metadata is not None and parallel:
        if metadata.dp_size > 1:
            raise wrong(
                "moe_metadata", f"has dp_size {metadata.dp_size}, expected 1: tokens are not exchanged"
            )
        first, total = metadata.ep_rank * here, metadata.ep_size * here
    tokens = hidden_states.flatten(0, -2) if hidden_states.dim() > 2 else hidden_states
    ids = topk_ids.flatten(0, -2) if topk_ids.dim() > 2 else topk_ids
    shares = topk_weights.flatten(0, -2) if topk_weights.dim() > 2 else topk_weights
    result = overload(tokens, *weights, shares, ids, renormalize, first, total)
    if metadata is not None and parallel:
        result = reduced(result, metadata.ep_group)
    return result.view(hidden_states.shape)
