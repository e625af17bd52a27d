"""The noise of sums of products without reruns: the same function of the squared inputs.

A product of matrices is a sum of products in each element. When every factor moves by an independent relative error of
size e, the element moves by e times the root of (number of factors) times the sum of the squared products; and that sum
is the same product of the squared matrices. So one more run, in float32, gives what many reruns only estimate.
Gradients of such functions are such functions of the other factors and of the incoming gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from op_tools.categories import base_name
from op_tools.reference.base import Reference
from op_tools.trees import map_leaves

# Factors in each product, for functions that only add up products of their inputs.
_FACTORS = {
    "linear": 2, "matmul": 2, "__matmul__": 2, "mm": 2, "bmm": 2, "addmm": 2, "baddbmm": 2, "mv": 2, "dot": 2, "einsum": 2,
    "conv1d": 2, "conv2d": 2, "conv3d": 2, "convolution": 2, "sum": 1, "cumsum": 1,
    "embedding_dense_backward": 1, "index_add": 1,
}  # fmt: skip
# With these, the result is no longer the plain sum of products.
_SCALING = ("alpha", "beta")


def spread(call: Reference) -> list[torch.Tensor | None] | None:
    """For each result the variance of its elements in units of the squared rounding; None where the rule does not hold."""
    factors = _FACTORS.get(base_name(call.name))
    if factors is None or any(key in call.kwargs for key in _SCALING):
        return None
    values = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, torch.Tensor)]
    if any(value.is_complex() for value in values):
        return None
    grads = None if call.grad_outputs is None else [_squared(grad) for grad in call.grad_outputs]
    try:
        args, kwargs = map_leaves(tuple(call.args), _squared), map_leaves(dict(call.kwargs), _squared)
        found = call.evaluate(args, kwargs, grads, upcast=False)
    except Exception:  # a dtype= argument, an overload that takes no float32: reruns will do
        return None
    return [_variance(value, factors) for value in found]


def _squared(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        wide = value.double() if value.dtype == torch.float64 else value.float()
        return wide.square()
    return torch.float32 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _variance(value: Any, factors: int) -> torch.Tensor | None:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    # Squares leave the range of float32 sooner than the values do.
    return value.mul(factors) if bool(value.isfinite().all()) else None
