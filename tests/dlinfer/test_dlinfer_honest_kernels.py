"""Kernels that compute the same in another order, as fast kernels do, are not accused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dlinfer.conformance.judging import check
from dlinfer.conformance.samples import make
from dlinfer.interface import OPERATORS
from dlinfer.reference.quantisation import restored
from dlinfer.vendors import Vendor, using

pytestmark = pytest.mark.unit


def _blockwise_decode(*args: Any, **kwargs: Any) -> None:
    """Softmax over one block of keys after the other, with a running maximum; weights are rounded before they are normed."""
    g = OPERATORS["paged_decode_attention"].bound(args, kwargs)
    query, kv_heads = g["query"], g["key_cache"].shape[2]
    batch, heads = g["block_table"].shape[0], query.shape[1]
    new = query.shape[0] // batch
    for row in range(query.shape[0]):
        sequence = row // new
        length = int(g["kv_lengths"][sequence])
        position = length - new + row % new
        for head in range(heads):
            g["attn_output"][row, head] = _one(
                g, query[row, head], sequence, head, head * kv_heads // heads, position
            )


def _one(g: dict[str, Any], query: Tensor, sequence: int, head: int, shared: int, position: int) -> Tensor:
    size = g["key_cache"].shape[1]
    top, total = -torch.inf, torch.tensor(0.0)
    value = _block(g, "value_cache", 0, shared, 1)
    out = torch.zeros(value.shape[-1])
    for column in range(position // size + 1):
        keys = _block(g, "key_cache", int(g["block_table"][sequence, column]), shared, 0)
        values = _block(g, "value_cache", int(g["block_table"][sequence, column]), shared, 1)
        positions = torch.arange(column * size, column * size + size)
        scores = (keys @ query.float()) * g["softmax_scale"]
        if g["soft_cap"]:
            scores = g["soft_cap"] * torch.tanh(scores / g["soft_cap"])
        if g["alibi_slopes"] is not None:
            scores = scores - g["alibi_slopes"][head].float() * (position - positions).abs()
        seen = positions <= position
        if g["window_left"] >= 0:
            seen &= position - positions <= g["window_left"]
        if not bool(seen.any()):
            continue
        scores, values = scores[seen], values[seen]
        higher = torch.maximum(torch.tensor(top), scores.max())
        kept = torch.exp(torch.tensor(top) - higher)
        weights = torch.exp(scores - higher)
        total = total * kept + weights.sum()
        out = out * kept + weights.to(query.dtype).float() @ values
        top = float(higher)
    return (out / total if total > 0 else out).to(query.dtype)


def _block(g: dict[str, Any], cache: str, block: int, head: int, side: int) -> Tensor:
    if not g["quant_bits"]:
        return g[cache][block, :, head].float()
    zero = None if g["kv_zeros"] is None else g["kv_zeros"][side]
    return restored(g[cache][block], g["kv_scales"][side], zero, g["quant_bits"], torch.float32)[:, head]


def test_attention_with_a_running_maximum_passes() -> None:
    with using(Vendor("blockwise", "1", {"paged_decode_attention": _blockwise_decode})):
        results = [check(make("paged_decode_attention", n), "blockwise", "cpu") for n in range(75)]
    assert [(r.id, r.dtype, r.label, r.reason) for r in results if r.status != "pass"] == []
    assert sum(r.error_over_bound is not None for r in results) > 40, "they were judged, not found equal"


def _norm_of_another_order(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """One element after the other, in float32, and divided instead of multiplied."""
    value = hidden_states.float()
    total = torch.zeros(value.shape[:-1])
    for position in range(value.shape[-1]):
        total = total + value[..., position] * value[..., position]
    root = torch.sqrt(total / max(value.shape[-1], 1) + epsilon).unsqueeze(-1)
    return (value * weight.float() / root).to(hidden_states.dtype)


def test_a_norm_of_another_order_passes() -> None:
    with using(Vendor("ordered", "1", {"rms_norm": _norm_of_another_order})):
        results = [check(make("rms_norm", n), "ordered", "cpu") for n in range(105)]
    assert [(r.id, r.label, r.reason) for r in results if r.status != "pass" or r.reason] == []
