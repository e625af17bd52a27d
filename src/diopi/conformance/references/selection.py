"""References of selection, movement and random numbers that do not fit into an expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diopi.conformance.references.random import draw

# What embedding_renorm adds to a norm before it divides by it.
_NORM_GUARD = 1e-7
# diopiMemoryFormat_t
_CHANNELS_LAST, _CHANNELS_LAST_3D, _PRESERVE, _CHANNELS_LAST_1D = 1, 2, 3, 4


def indexed(source: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """source[indices]; an absent index takes the whole dimension."""
    return source[tuple(slice(None) if index is None else index for index in indices)]


def index_put(source: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> Tensor:
    """A copy of `source` in which source[indices] is `values`, or has them added."""
    result: Tensor = torch.ops.aten.index_put(source, list(indices), values, accumulate)
    return result


def scattered(
    source: Tensor, dim: int, index: Tensor, values: Tensor | complex, reduce: str | None
) -> Tensor:
    """`values` written to the positions of `index` along `dim`, or combined with what is there."""
    if not isinstance(values, Tensor):
        values = torch.full(index.shape, values, dtype=source.dtype)
    if not reduce:
        return source.scatter(dim, index, values)
    if reduce == "add" and source.dtype != torch.bool:
        return source.scatter_add(dim, index, values)
    kind = {"add": "sum", "multiply": "prod"}[reduce]
    if source.is_complex():
        return _scattered_one_by_one(source, dim, index, values)
    return source.scatter_reduce(dim, index, values[tuple(map(slice, index.shape))], kind)


def _scattered_one_by_one(source: Tensor, dim: int, index: Tensor, values: Tensor) -> Tensor:
    """Products of complex numbers, for which torch has no scatter."""
    result = source.clone()
    for position in torch.cartesian_prod(*map(torch.arange, index.shape)).reshape(-1, index.dim()).tolist():
        target = list(position)
        target[dim] = int(index[tuple(position)])
        result[tuple(target)] *= values[tuple(position)]
    return result


def sliced(source: Tensor, dim: int, start: int, end: int, step: int) -> Tensor:
    """source[..., start:end:step, ...] at dimension `dim`."""
    kept = [slice(None)] * source.dim()
    kept[dim] = slice(start, end, step)
    return source[tuple(kept)]


def masked_select_backward(grad_output: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    """The gradients at their positions, zeros where nothing was selected."""
    grad = torch.zeros(source.shape, dtype=grad_output.dtype)
    grad[mask.expand(source.shape)] = grad_output
    return grad


def sort_backward(
    grad_output: Tensor, dim: int, indices: Tensor, sizes: Sequence[int], keepdim: bool
) -> Tensor:
    """The gradients back where the values came from; without keepdim `dim` was reduced away."""
    if not keepdim and sizes:
        grad_output, indices = grad_output.unsqueeze(dim), indices.unsqueeze(dim)
    return grad_output.new_zeros(list(sizes)).scatter(dim, indices, grad_output)


def embedding_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, by_frequency: bool
) -> Tensor:
    """The gradients of equal rows summed (or averaged); the padding row gets none."""
    rows = indices.reshape(-1).long()
    grads = grad.reshape(rows.numel(), grad.shape[-1])
    if by_frequency:
        grads = grads / torch.bincount(rows, minlength=num_weights)[rows].unsqueeze(1).to(grads.dtype)
    kept = rows != padding_idx
    return grad.new_zeros(num_weights, grad.shape[-1]).index_add(0, rows[kept], grads[kept])


def embedding_renorm(table: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """The rows that are named and longer than `max_norm` are scaled down to it."""
    result = table.clone()
    for row in indices.reshape(-1).unique().tolist():
        norm = float(torch.linalg.vector_norm(table[row], norm_type))
        if norm > max_norm:
            result[row] = table[row] * (max_norm / (norm + _NORM_GUARD))
    return result


def unique(
    source: Tensor, dim: int | None, ordered: bool, return_counts: bool, indices: Tensor | None
) -> tuple[Any, ...]:
    """The different values, where each element went, and how often each value occurs."""
    values, inverse, counts = torch.unique(
        source, sorted=ordered, return_inverse=True, return_counts=True, dim=dim
    )
    return values, None if indices is None else inverse, counts if return_counts else None


def in_memory_format(source: Tensor, memory_format: int) -> Tensor:
    """A copy whose elements lie in memory as `memory_format` says."""
    if memory_format == _CHANNELS_LAST_1D:
        return source.transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2)
    formats = {
        _CHANNELS_LAST: torch.channels_last,
        _CHANNELS_LAST_3D: torch.channels_last_3d,
        _PRESERVE: torch.preserve_format,
    }
    return source.clone(memory_format=formats.get(memory_format, torch.contiguous_format))


def end_of_range(numbers: Tensor, to: int | None) -> int:
    """The number that draws stay below; without `to` all numbers up to the largest that has no gaps below it."""
    if to is not None:
        return to
    dtype = numbers.dtype
    if dtype == torch.bool:
        return 2
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps) + 1
    return min(torch.iinfo(dtype).max + 1, torch.iinfo(torch.int64).max)


def dropout(source: Tensor, mask: Tensor, p: float, train: bool) -> tuple[Any, ...]:
    """Elements are kept at the rate 1 - p; a mask with fewer elements than `source` keeps or drops whole channels."""
    if not train:
        return source.clone(), torch.ones_like(mask)
    if mask.shape == source.shape:
        kept, drawn = draw("native_dropout", source, p, True)
        return kept, drawn
    return draw("dropout2d", source, p), None
