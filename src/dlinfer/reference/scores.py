"""Attention of one sequence: what every operator of attention comes down to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dlinfer.interface.precision import wide


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys a query sees, and how scores are changed before the softmax."""

    scale: float
    causal: bool = True
    alibi_slopes: Tensor | None = None
    window_left: int = -1
    window_right: int = -1
    soft_cap: float = 0.0


def attend(query: Tensor, key: Tensor, value: Tensor, sight: Sight, mask: Tensor | None = None) -> Tensor:
    """[new, heads, size] over [length, kv_heads, size] and [length, kv_heads, value_size]; the last query is at the last key.

    `mask` is [new, at least length]: true hides, numbers are added.
    """
    kind = wide(query)
    new, heads, _ = query.shape
    length, kv_heads, size_v = value.shape
    if not length or not new:
        return query.new_zeros([new, heads, size_v])
    # Heads that share keys lie behind each other: [kv_heads, group, new, size] times [kv_heads, 1, size, length].
    grouped = query.to(kind).reshape(new, kv_heads, heads // kv_heads, -1).permute(1, 2, 0, 3)
    scores = grouped @ key.to(kind).permute(1, 2, 0).unsqueeze(1) * sight.scale
    if sight.soft_cap:
        scores = torch.tanh(scores / sight.soft_cap) * sight.soft_cap
    scores = _seen(scores, sight, mask, length)
    # A query that sees nothing gets zeros; NaN of an input stays.
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(blind, 0), -1).masked_fill(blind, 0)
    # As kernels with matrix units do, and as the declarations say: weights have the dtype of the query.
    weights = weights.to(query.dtype).to(kind)
    result = _weighted(weights, value.to(kind).transpose(0, 1).unsqueeze(1), scores == -torch.inf)
    return result.permute(2, 0, 1, 3).reshape(new, heads, size_v).to(query.dtype)


def _weighted(weights: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """[kv_heads, group, new, length] times [kv_heads, 1, length, size]. A hidden key has no part in it, whatever its value is."""
    finite = values.isfinite()
    if bool(finite.all()):
        return weights @ values
    result = weights @ values.where(finite, 0)
    for key in (~finite).any(-1).any(0).flatten().nonzero().flatten().tolist():
        place = slice(key, key + 1)
        part = weights[..., place] * values.masked_fill(finite, 0)[:, :, place]
        result = result + part.masked_fill(hidden[..., place], 0)
    return result


def _seen(scores: Tensor, sight: Sight, mask: Tensor | None, length: int) -> Tensor:
    """Scores with biases added and hidden keys at minus infinity."""
    kv_heads, group, new, _ = scores.shape
    keys = torch.arange(length, device=scores.device)
    distance = keys - (length - new + torch.arange(new, device=scores.device)).unsqueeze(1)
    if sight.alibi_slopes is not None:
        slopes = sight.alibi_slopes.to(scores.dtype).reshape(kv_heads, group, 1, 1)
        scores = scores - slopes * distance.abs().to(scores.dtype)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if sight.causal:
        hidden = hidden | (distance > 0)
    if sight.window_left >= 0:
        hidden = hidden | (distance < -sight.window_left)
    if sight.window_right >= 0:
        hidden = hidden | (distance > sight.window_right)
    if mask is not None:
        mask = mask[:, :length]
        if mask.dtype == torch.bool:
            hidden = hidden | mask
        else:
            scores = scores + mask.to(scores.dtype)
    return scores.masked_fill(hidden, -torch.inf)
