"""Operators of the builder that move elements to places that are computed: Pad, Gather, Scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dicp.errors import InvalidGraphError

__all__ = ["gather", "pad", "scatter"]


def pad(
    x: Tensor, value: Tensor, _mode: int, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> Tensor:
    """Zeros or another value around elements and between them; negative edges cut off."""
    spread = [
        length + max(length - 1, 0) * between for length, between in zip(x.shape, interior, strict=True)
    ]
    wide = x.new_full(spread, value.item())
    wide[tuple(slice(None, None, between + 1) for between in interior)] = x
    edges = [edge for dim in reversed(range(x.dim())) for edge in (low[dim], high[dim])]
    return torch.nn.functional.pad(wide, edges, value=value.item()) if edges else wide


def gather(
    x: Tensor, indices: Tensor, dims: Sequence[Any], sizes: Sequence[int], _sorted: bool, kind: Any
) -> Tensor:
    """Windows of `sizes` that start where the index vectors say, moved inside where they would reach out."""
    offsets, collapsed, start_map, vector = dims
    starts = _index_vectors(indices, vector)
    batch = list(starts.shape[:-1])
    picked = []
    for dim, size in enumerate(sizes):
        first = torch.zeros(batch, dtype=torch.int64)
        if dim in start_map:
            first = starts[..., start_map.index(dim)].clamp(0, x.shape[dim] - size)
        window = [size if other == dim else 1 for other in range(len(sizes))]
        picked.append(first.reshape(*batch, *[1] * len(sizes)) + torch.arange(size).reshape(window))
    found = x[tuple(torch.broadcast_tensors(*picked))]
    kept = [size for dim, size in enumerate(sizes) if dim not in collapsed]
    found = found.reshape(*batch, *kept)
    rank = len(batch) + len(kept)
    batches, windows = iter(range(len(batch))), iter(range(len(batch), rank))
    order = [next(windows) if dim in offsets else next(batches) for dim in range(rank)]
    return found.permute(order).contiguous()


def scatter(
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    dims: Sequence[Any],
    functions: Sequence[str],
) -> Tensor:
    """Windows of `updates` put or added where the index vectors say; those that reach out are left out."""
    window_dims, inserted, scattered, vector = dims
    starts = _index_vectors(indices, vector)
    batch_dims = [dim for dim in range(updates.dim()) if dim not in window_dims]
    window = [updates.shape[dim] for dim in window_dims]
    values = updates.permute(*batch_dims, *window_dims).reshape(-1, *window)
    whole = iter(window)
    sizes = [1 if dim in inserted else next(whole) for dim in range(x.dim())]
    places = starts.reshape(-1, len(scattered))
    result = x.clone()
    for value, place in zip(values, places.tolist(), strict=True):
        first = [place[scattered.index(dim)] if dim in scattered else 0 for dim in range(x.dim())]
        if all(a >= 0 and a + n <= length for a, n, length in zip(first, sizes, x.shape, strict=True)):
            part = result[tuple(slice(a, a + n) for a, n in zip(first, sizes, strict=True))]
            part.copy_(_combined(part, value.reshape(sizes), functions))
    return result


def _combined(old: Tensor, new: Tensor, functions: Sequence[str]) -> Tensor:
    match functions[0]:
        case "add":
            return old + new
        case "replace":
            return new
    raise InvalidGraphError(f"the interpreter has no function {functions[0]!r} for a Scatter")


def _index_vectors(indices: Tensor, vector: int) -> Tensor:
    """With the components of an index in the last dimension; without one for them, an index is a number."""
    whole = indices.to(torch.int64)
    return whole.unsqueeze(-1) if vector == whole.dim() else whole.movedim(vector, -1)
