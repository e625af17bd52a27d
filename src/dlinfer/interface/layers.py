"""Declarations: norms, activations and rotary position embedding."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.interface.checks import (
    FLOATS,
    alike,
    check_quantised,
    fake_hidden,
    fake_quantised,
    has_dtype,
    has_rank,
    has_shape,
    positive,
    same_device,
)
from dlinfer.interface.declaration import Operator

# ---- norms ----


def _norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> None:
    has_dtype("hidden_states", hidden_states)
    if hidden_states.dim() < 1:
        raise wrong("hidden_states", "is a single number, expected [..., hidden]")
    has_dtype("weight", weight)
    has_rank("weight", weight, 1)
    if weight.shape[0] != hidden_states.shape[-1]:
        raise wrong(
            "weight",
            f"has length {weight.shape[0]}, expected {hidden_states.shape[-1]}, the last dimension of hidden_states",
        )
    same_device("hidden_states", hidden_states, "weight", weight)
    positive("epsilon", epsilon, zero=True)


def _residual(hidden_states: Tensor, residual: Tensor) -> None:
    if residual.shape != hidden_states.shape:
        has_shape("residual", residual, hidden_states.shape, "the shape of hidden_states")
    alike("hidden_states", hidden_states, "residual", residual)


def _norm_fits(hidden_states: Tensor, weight: Tensor, epsilon: float) -> bool:
    """The common call at a glance, for it is made by every layer for every token; False: look closely."""
    return (
        weight.dim() == 1
        and hidden_states.dim() > 0
        and weight.shape[0] == hidden_states.shape[-1]
        and weight.device == hidden_states.device
        and hidden_states.dtype in FLOATS
        and weight.dtype in FLOATS
        and 0 <= epsilon < inf
    )


def _check_rms_norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> None:
    if not _norm_fits(hidden_states, weight, epsilon):
        _norm(hidden_states, weight, epsilon)


def _check_add_rms_norm(hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
    if not _norm_fits(hidden_states, weight, epsilon):
        _norm(hidden_states, weight, epsilon)
    _residual(hidden_states, residual)


def _check_rms_norm_w8a8(
    hidden_states: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> None:
    _norm(hidden_states, weight, epsilon)
    check_quantised(quant_dtype)


def _check_add_rms_norm_w8a8(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> None:
    _norm(hidden_states, weight, epsilon)
    _residual(hidden_states, residual)
    check_quantised(quant_dtype)


def _fake_add_rms_norm(hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    return fake_hidden(hidden_states), fake_hidden(hidden_states)


def _fake_add_rms_norm_w8a8(hidden_states: Tensor, quant_dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return *fake_quantised(hidden_states, quant_dtype), fake_hidden(hidden_states)


_NORM_SHAPES = {
    "hidden_states": "[..., hidden], floating",
    "residual": "like hidden_states",
    "weight": "[hidden], floating",
    "epsilon": "added to the mean of squares",
    "quant_dtype": "int8 or float8_e4m3fn",
}
_SCALED = "the norm, quantised as `dynamic_quant` does it per token, and its scales [...] in float32"


# ---- activations ----


def _check_silu_and_mul(input_tensor: Tensor, dim: int) -> None:
    rank = input_tensor.dim()
    has_dtype("input_tensor", input_tensor)
    if rank == 0:
        raise wrong("input_tensor", "is a single number, expected [..., 2 * size]")
    if not -rank <= dim < rank:
        raise wrong("dim", f"is {dim}, expected a dimension of input_tensor {list(input_tensor.shape)}")
    if input_tensor.shape[dim] % 2:
        raise wrong(
            "input_tensor",
            f"has length {input_tensor.shape[dim]} in dim {dim}, expected an even length: gate, then up",
        )


def _fake_silu_and_mul(input_tensor: Tensor, dim: int) -> Tensor:
    shape = list(input_tensor.shape)
    shape[dim] = shape[dim] // 2
    return input_tensor.new_empty(shape)


# ---- rotary position embedding ----


def _table(cos: Tensor, sin: Tensor, of: str, like: Tensor, rows: int, size: int) -> None:
    """cos and sin hold one row for each token of `like`, the argument `of`, in any shape [..., rotary]."""
    for argument, table in (("cos", cos), ("sin", sin)):
        has_dtype(argument, table)
        same_device(of, like, argument, table)
        rotary = table.shape[-1] if table.dim() else 0
        if not rotary or rotary % 2 or rotary > size:
            raise wrong(
                argument,
                f"has shape {list(table.shape)}, expected an even last dimension of at most {size}, the head size of {of}",
            )
        if table.numel() != rows * rotary:
            raise wrong(
                argument,
                f"has shape {list(table.shape)}, expected [{rows}, rotary]: one row for each token of {of}",
            )
    if cos.shape[-1] != sin.shape[-1]:
        raise wrong("sin", f"has {sin.shape[-1]} columns, expected {cos.shape[-1]} like cos")


def _rotary_fits(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """The common call at a glance, for it is made by every layer for every token; False: look closely."""
    shape, others, table, dtype, device = query.shape, key.shape, cos.shape, query.dtype, query.device
    return (
        len(shape) == len(others) == 3
        and len(table) == 2
        and shape[0] == others[0] == table[0]
        and shape[2] == others[2] == table[1]
        and sin.shape == table
        and shape[2] > 0
        and shape[2] % 2 == 0
        and dtype in FLOATS
        and key.dtype is dtype
        and cos.dtype in FLOATS
        and sin.dtype in FLOATS
        and key.device == cos.device == sin.device == device
    )


def _check_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> None:
    if _rotary_fits(query, key, cos, sin):
        return
    has_dtype("query", query)
    if query.dim() < 3:
        raise wrong("query", f"has shape {list(query.shape)}, expected [..., heads, head_size]")
    has_shape("key", key, [*query.shape[:-2], None, query.shape[-1]], "query with its own heads")
    alike("query", query, "key", key)
    rows = query.shape[:-2].numel()
    _table(cos, sin, "query", query, rows, query.shape[-1])


def _fake_rotary(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _check_interleaved(states: Tensor, cos: Tensor, sin: Tensor) -> None:
    has_dtype("states", states)
    if states.dim() < 2:
        raise wrong("states", f"has shape {list(states.shape)}, expected [tokens, ..., size]")
    _table(cos, sin, "states", states, states.shape[0], states.shape[-1])
    if cos.shape[-1] != states.shape[-1]:
        raise wrong("cos", f"has {cos.shape[-1]} columns, expected {states.shape[-1]} like states")


def _fake_interleaved(states: Tensor) -> Tensor:
    return states.new_empty(states.shape)


_ANGLES = (
    "one row for each token, last dimension rotary: the angles' {} twice, [f0 .. fn, f0 .. fn]; any float"
)
_TABLES = {"cos": _ANGLES.format("cosines"), "sin": _ANGLES.format("sines")}


# ---- declarations ----

OPERATORS = (
    Operator(
        name="rms_norm",
        schema="(Tensor hidden_states, Tensor weight, float epsilon) -> Tensor",
        summary="hidden_states / sqrt(mean of squares + epsilon) * weight, over the last dimension, computed in float32.",
        shapes=_NORM_SHAPES,
        results="like hidden_states",
        check=_check_rms_norm,
        fake=fake_hidden,
        tolerance="sum",
    ),
    Operator(
        name="add_rms_norm",
        schema="(Tensor hidden_states, Tensor residual, Tensor weight, float epsilon) -> (Tensor, Tensor)",
        summary="The sum of hidden_states and residual, rounded to their dtype, and the RMS norm of that sum.",
        shapes=_NORM_SHAPES,
        results="(norm, sum), both like hidden_states",
        check=_check_add_rms_norm,
        fake=_fake_add_rms_norm,
        tolerance="sum",
    ),
    Operator(
        name="rms_norm_w8a8",
        schema="(Tensor hidden_states, Tensor weight, float epsilon, ScalarType quant_dtype) -> (Tensor, Tensor)",
        summary="The RMS norm, quantised row by row.",
        shapes=_NORM_SHAPES,
        results=_SCALED,
        check=_check_rms_norm_w8a8,
        fake=fake_quantised,
        tolerance="quantised",
    ),
    Operator(
        name="add_rms_norm_w8a8",
        schema="(Tensor hidden_states, Tensor residual, Tensor weight, float epsilon, ScalarType quant_dtype)"
        " -> (Tensor, Tensor, Tensor)",
        summary="`add_rms_norm` with the norm quantised row by row.",
        shapes=_NORM_SHAPES,
        results=f"{_SCALED}, then the sum like hidden_states",
        check=_check_add_rms_norm_w8a8,
        fake=_fake_add_rms_norm_w8a8,
        tolerance="quantised",
    ),
    Operator(
        name="silu_and_mul",
        schema="(Tensor input_tensor, int dim=-1) -> Tensor",
        summary="silu(first half) * second half along one dimension.",
        shapes={
            "input_tensor": "[..., 2 * size], floating: the gate, then what it gates",
            "dim": "the dimension that is halved",
        },
        results="[..., size], dtype of input_tensor",
        check=_check_silu_and_mul,
        fake=_fake_silu_and_mul,
        tolerance="elementwise",
    ),
    Operator(
        name="apply_rotary_pos_emb",
        schema="(Tensor query, Tensor key, Tensor cos, Tensor sin) -> (Tensor, Tensor)",
        summary="Rotary embedding of the first `rotary` elements of each head, element i paired with i + rotary / 2;"
        " elements behind them are copied.",
        shapes={
            "query": "[..., heads, head_size], floating; all in front of heads are tokens",
            "key": "[..., kv_heads, head_size], the same tokens",
            **_TABLES,
        },
        results="(query, key), new tensors",
        check=_check_rotary,
        fake=_fake_rotary,
        tolerance="elementwise",
    ),
    Operator(
        name="apply_rotary_pos_emb_interleaved",
        schema="(Tensor states, Tensor cos, Tensor sin, bool native_layout=True) -> Tensor",
        summary="Rotary embedding of adjacent pairs: element 2i is paired with 2i + 1. With native_layout the result has"
        " all first elements of the pairs, then all second ones; without, pairs stay where they were.",
        shapes={
            "states": "[tokens, ..., size], floating; size is even",
            **_TABLES,
            "native_layout": "halves instead of pairs in the result",
        },
        results="like states",
        check=_check_interleaved,
        fake=_fake_interleaved,
        tolerance="elementwise",
    ),
)
