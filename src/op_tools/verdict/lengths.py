"""How many terms one element of a result sums: what error growth depends on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from op_tools.categories import ATTENTION, Category, base_name
from op_tools.reference.base import Reference
from op_tools.trees import flat_tensors

_SCANS = frozenset(("cumsum", "cumprod", "logcumsumexp"))
_SCATTERS = ("index_add", "scatter", "index_put", "index_reduce", "embedding")
# Rows that are scattered at random meet: some target gets this many times the average.
_CROWDING = 4.0


def function_name(func: Callable[..., Any] | None) -> str:
    """The base name of an operator or a function."""
    is_operator = isinstance(func, torch._ops.OpOverload)
    return base_name(str(func) if is_operator else getattr(func, "__name__", "") or "")


def independent_errors(reference: Reference, result: torch.Tensor, length: float) -> float:
    """How many elements have errors of their own: those of a running sum contain all earlier ones."""
    shared = length if function_name(reference.func) in _SCANS else 1.0
    return max(1.0, result.numel() / shared)


def shortest_input(reference: Reference) -> torch.dtype:
    """The floating type with the fewest bits among the tensors of the call; float32 if there is none."""
    inputs = flat_tensors(reference.args, reference.kwargs)
    kinds = [tensor.dtype for tensor in inputs if tensor.is_floating_point()]
    return min(kinds, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)


def summed_terms(category: Category, reference: Reference, result: torch.Tensor) -> float:
    """An estimate from shapes alone: at least 1."""
    if reference.func is None or category == "elementwise" or not result.numel():
        return 1.0
    name = function_name(reference.func)
    inputs = flat_tensors(reference.args, reference.kwargs)
    inputs += [grad for grad in reference.grad_outputs or () if grad is not None]
    sizes = sorted((tensor.numel() for tensor in inputs if tensor.is_floating_point()), reverse=True)
    if not sizes:
        return 1.0
    if name in _SCANS:
        return float(max(result.shape, default=1))
    if ATTENTION in name and len(inputs) > 1:
        return float(max(inputs[1].shape[-2:], default=1))
    if category == "matmul" and len(sizes) > 1:
        # (M, K) times (K, N) gives (M, N): K. Batches and windows make it an upper or lower estimate.
        return max(1.0, math.sqrt(sizes[0] * sizes[1] / result.numel()))
    average = max(1.0, sizes[0] / result.numel())
    return average * _CROWDING if any(part in name for part in _SCATTERS) else average
