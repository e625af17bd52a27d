"""What an operator's name and shapes tell of its arithmetic: how many terms it sums, whether it sums at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from op_tools.categories import ATTENTION, Category, base_name
from op_tools.reference.base import Reference
from op_tools.reference.perturbation import ROUNDING
from op_tools.trees import flat_tensors
from op_tools.verdict.bounds import ATTENTION_ROUNDINGS, DIRECT_UNITS, SHORTEST, WIDE_ROUNDINGS, Kind, growth
from op_tools.verdict.rounding import Format
from op_tools.verdict.systematic import witness_length

# Functions that level off are often computed as one minus something near one: an error of so many roundings of their
# largest value, in any element, is the formula's and no fault.
SATURATED, SATURATED_GRADIENT = 4.0, 1.5
_SCANS = frozenset(("cumsum", "cumprod", "logcumsumexp"))
_SCATTERS = ("index_add", "scatter", "index_put", "index_reduce", "embedding")
# Rows that are scattered at random meet: some target gets this many times the average.
_CROWDING = 4.0


# Functions that level off on one side, and their gradients: what is left there may be a difference of near numbers.
_SATURATING = frozenset(
    (
        "sigmoid", "silu", "gelu", "mish", "elu", "selu", "celu", "glu", "logsigmoid", "log_sigmoid", "softplus", "logaddexp",
        "logaddexp2", "binary_cross_entropy_with_logits",
    )
)  # fmt: skip
# Functions that hand on bits: the sign of a zero is one of them. (relu, maximum and the like may give either zero.)
_COPIES = frozenset(
    (
        "clone", "contiguous", "copy", "cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "index_select",
        "gather", "take", "take_along_dim", "index", "getitem", "masked_select", "masked_fill", "where", "flip", "roll",
        "rot90", "tile", "repeat", "repeat_interleave", "embedding", "pad", "constant_pad_nd",
    )
)  # fmt: skip
# Several operators in a row, whatever their shapes say.
_NOT_DIRECT = frozenset(("logspace", "linspace", "renorm"))


def saturates(reference: Reference) -> bool:
    """Whether a correct formula may cancel where the function levels off."""
    name = function_name(reference.func)
    return name.removesuffix("_forward").removesuffix("_backward") in _SATURATING


def is_direct(category: Category, reference: Reference, result: torch.Tensor) -> bool:
    """Each element from the elements at its place in a few steps. Gradients of broadcast inputs are sums."""
    if category != "elementwise" or function_name(reference.func) in _NOT_DIRECT:
        return False
    if not reference.is_gradient:
        return True
    grads = [grad.numel() for grad in reference.grad_outputs or () if grad is not None]
    return max(grads, default=0) <= result.numel()


def function_name(func: Callable[..., Any] | None) -> str:
    """The base name of an operator or a function."""
    is_operator = isinstance(func, torch._ops.OpOverload)
    return base_name(str(func) if is_operator else getattr(func, "__name__", "") or "")


def is_copy(reference: Reference) -> bool:
    """Whether every element of the result is an element of an input, bit for bit."""
    return function_name(reference.func) in _COPIES


def is_scan(reference: Reference) -> bool:
    """Running sums and products."""
    return function_name(reference.func) in _SCANS


def sums_evenly(category: Category, reference: Reference) -> bool:
    """Whether every element is a sum of as many terms as any other: plain reductions and products of matrices."""
    if category not in ("reduction", "matmul") or reference.is_gradient or is_scan(reference):
        return False
    return ATTENTION not in function_name(reference.func)


def shortest_input(reference: Reference) -> torch.dtype:
    """The floating type with the fewest bits among the tensors of the call; float32 if there is none."""
    inputs = flat_tensors(reference.args, reference.kwargs)
    kinds = [tensor.dtype for tensor in inputs if tensor.is_floating_point()]
    return min(kinds, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)


def summed_terms(category: Category, reference: Reference, result: torch.Tensor) -> float:
    """An estimate from shapes alone: at least 1."""
    if reference.func is None or is_direct(category, reference, result) or not result.numel():
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


def kind_of(
    category: Category, reference: Reference, exact: torch.Tensor, length: float, form: Format
) -> Kind:
    """What the limits of one result depend on, from the function and the shapes."""
    columns = witness_length(exact.shape) * (2 if exact.is_complex() else 1)
    # In double precision the truth has errors of the same size.
    if form.dtype == torch.float64:
        return Kind(growth(length) * 2.0, columns=columns)
    saturated = saturates(reference)
    direct = DIRECT_UNITS if is_direct(category, reference, exact) else 0.0
    if saturated and (reference.is_gradient or reference.name.endswith("_backward.default")):
        direct *= SATURATED_GRADIENT
    absolute = 0.0
    if saturated and exact.numel():
        absolute = SATURATED * ROUNDING * float(exact.abs().nan_to_num_(0, 0, 0).amax())
    # What a plain reduction sums is known; in what consists of several steps, shapes tell only the least.
    known = category == "reduction" and not reference.is_gradient
    leaning = ATTENTION_ROUNDINGS if ATTENTION in function_name(reference.func) else WIDE_ROUNDINGS
    return Kind(growth(length, SHORTEST if known else 1.0), direct, absolute, columns, leaning)
