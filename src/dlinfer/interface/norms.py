"""Declarations: RMS normalisation, with a residual, and with quantised results."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from dlinfer.interface.checks import (
    FLOATS,
    has_dtype,
    has_rank,
    has_shape,
    positive,
    same_device,
    same_dtype,
    wrong,
)
from dlinfer.interface.declaration import Operator
from dlinfer.interface.precision import wide

QUANTISED = (torch.int8, torch.float8_e4m3fn)


def _norm(name: str, hidden_states: Tensor, weight: Tensor, epsilon: float) -> None:
    has_dtype(name, "hidden_states", hidden_states)
    if hidden_states.dim() < 1:
        raise wrong(name, "hidden_states", "is a single number, expected [..., hidden]")
    has_dtype(name, "weight", weight)
    has_rank(name, "weight", weight, 1)
    if weight.shape[0] != hidden_states.shape[-1]:
        raise wrong(
            name,
            "weight",
            f"has length {weight.shape[0]}, expected {hidden_states.shape[-1]}, the last dimension of hidden_states",
        )
    same_device(name, "hidden_states", hidden_states, "weight", weight)
    positive(name, "epsilon", epsilon, zero=True)


def _residual(name: str, hidden_states: Tensor, residual: Tensor) -> None:
    if residual.shape != hidden_states.shape:
        has_shape(name, "residual", residual, hidden_states.shape, "the shape of hidden_states")
    same_dtype(name, "hidden_states", hidden_states, "residual", residual)
    same_device(name, "hidden_states", hidden_states, "residual", residual)


def _fits(hidden_states: Tensor, weight: Tensor, epsilon: float) -> bool:
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
    if not _fits(hidden_states, weight, epsilon):
        _norm("rms_norm", hidden_states, weight, epsilon)


def _check_add_rms_norm(hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
    if not _fits(hidden_states, weight, epsilon):
        _norm("add_rms_norm", hidden_states, weight, epsilon)
    _residual("add_rms_norm", hidden_states, residual)


def _check_rms_norm_w8a8(
    hidden_states: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> None:
    _norm("rms_norm_w8a8", hidden_states, weight, epsilon)
    check_quantised("rms_norm_w8a8", quant_dtype)


def _check_add_rms_norm_w8a8(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> None:
    _norm("add_rms_norm_w8a8", hidden_states, weight, epsilon)
    _residual("add_rms_norm_w8a8", hidden_states, residual)
    check_quantised("add_rms_norm_w8a8", quant_dtype)


def check_quantised(name: str, quant_dtype: torch.dtype) -> None:
    """A dtype that activations can be quantised to."""
    if quant_dtype not in QUANTISED:
        raise wrong(name, "quant_dtype", f"is {quant_dtype}, expected torch.int8 or torch.float8_e4m3fn")


def _fake_rms_norm(hidden_states: Tensor) -> Tensor:
    return hidden_states.new_empty(hidden_states.shape)


def _fake_add_rms_norm(hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    return hidden_states.new_empty(hidden_states.shape), hidden_states.new_empty(hidden_states.shape)


def fake_quantised(value: Tensor, quant_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantised values and one scale for each row."""
    return (
        value.new_empty(value.shape, dtype=quant_dtype),
        value.new_empty(value.shape[:-1], dtype=wide(value)),
    )


def _fake_rms_norm_w8a8(hidden_states: Tensor, quant_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return fake_quantised(hidden_states, quant_dtype)


def _fake_add_rms_norm_w8a8(hidden_states: Tensor, quant_dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return *fake_quantised(hidden_states, quant_dtype), hidden_states.new_empty(hidden_states.shape)


_HIDDEN = "[..., hidden], floating"
_WEIGHT = "[hidden], floating"
_EPSILON = "added to the mean of squares"
_QUANT_DTYPE = "int8 or float8_e4m3fn"
_SCALED = "the norm, quantised as `dynamic_quant` does it per token, and its scales [...] in float32"

OPERATORS = (
    Operator(
        name="rms_norm",
        schema="(Tensor hidden_states, Tensor weight, float epsilon) -> Tensor",
        summary="hidden_states / sqrt(mean of squares + epsilon) * weight, over the last dimension, computed in float32.",
        shapes={"hidden_states": _HIDDEN, "weight": _WEIGHT, "epsilon": _EPSILON},
        results="like hidden_states",
        check=_check_rms_norm,
        fake=_fake_rms_norm,
        tolerance="sum",
    ),
    Operator(
        name="add_rms_norm",
        schema="(Tensor hidden_states, Tensor residual, Tensor weight, float epsilon) -> (Tensor, Tensor)",
        summary="The sum of hidden_states and residual, rounded to their dtype, and the RMS norm of that sum.",
        shapes={
            "hidden_states": _HIDDEN,
            "residual": "like hidden_states",
            "weight": _WEIGHT,
            "epsilon": _EPSILON,
        },
        results="(norm, sum), both like hidden_states",
        check=_check_add_rms_norm,
        fake=_fake_add_rms_norm,
        tolerance="sum",
    ),
    Operator(
        name="rms_norm_w8a8",
        schema="(Tensor hidden_states, Tensor weight, float epsilon, ScalarType quant_dtype) -> (Tensor, Tensor)",
        summary="The RMS norm, quantised row by row.",
        shapes={
            "hidden_states": _HIDDEN,
            "weight": _WEIGHT,
            "epsilon": _EPSILON,
            "quant_dtype": _QUANT_DTYPE,
        },
        results=_SCALED,
        check=_check_rms_norm_w8a8,
        fake=_fake_rms_norm_w8a8,
        tolerance="quantised",
    ),
    Operator(
        name="add_rms_norm_w8a8",
        schema="(Tensor hidden_states, Tensor residual, Tensor weight, float epsilon, ScalarType quant_dtype)"
        " -> (Tensor, Tensor, Tensor)",
        summary="`add_rms_norm` with the norm quantised row by row.",
        shapes={
            "hidden_states": _HIDDEN,
            "residual": "like hidden_states",
            "weight": _WEIGHT,
            "epsilon": _EPSILON,
            "quant_dtype": _QUANT_DTYPE,
        },
        results=f"{_SCALED}, then the sum like hidden_states",
        check=_check_add_rms_norm_w8a8,
        fake=_fake_add_rms_norm_w8a8,
        tolerance="quantised",
    ),
)
