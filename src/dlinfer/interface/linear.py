"""Declarations: plain linear layers and the change of layouts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dlinfer.interface.checks import FLOATS, has_dtype, has_rank, has_shape, same_device, same_dtype, wrong
from dlinfer.interface.declaration import Operator


def check_bias(
    name: str,
    bias: Tensor | None,
    features: int,
    like: Tensor,
    of: str,
    argument: str = "bias",
    dtypes: Sequence[torch.dtype] = FLOATS,
    why: str = "",
) -> None:
    """One number for each output feature."""
    if bias is not None:
        has_shape(name, argument, bias, [features], f"one for each output feature of {of}")
        same_device(name, "the input", like, argument, bias)
        has_dtype(name, argument, bias, dtypes, why)


def _check_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    has_dtype("linear", "x", x)
    has_rank("linear", "weight", weight, 2)
    if not x.dim() or x.shape[-1] != weight.shape[1]:
        raise wrong("linear", "x", f"has shape {list(x.shape)}, expected [..., {weight.shape[1]}] for weight")
    same_dtype("linear", "x", x, "weight", weight)
    same_device("linear", "x", x, "weight", weight)
    check_bias("linear", bias, weight.shape[0], x, "weight")
    if bias is not None:
        same_dtype("linear", "x", x, "bias", bias)


def _fake_linear(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty([*x.shape[:-1], weight.shape[0]])


def _check_transdata(transdata_type: int) -> None:
    if transdata_type not in (0, 1, 2):
        raise wrong("transdata", "transdata_type", f"is {transdata_type}, expected 0, 1 or 2")


def _fake_transdata(hidden_states: Tensor) -> Tensor:
    return hidden_states.new_empty(hidden_states.shape)


OPERATORS = (
    Operator(
        name="linear",
        schema="(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
        summary="x times the transposed weight, plus bias.",
        shapes={
            "x": "[..., in], floating",
            "weight": "[out, in], dtype of x",
            "bias": "[out], dtype of x",
        },
        results="[..., out], dtype of x",
        check=_check_linear,
        fake=_fake_linear,
        tolerance="sum",
    ),
    Operator(
        name="transdata",
        schema="(Tensor hidden_states, int transdata_type=2) -> Tensor",
        summary="The same values in the layout that a vendor's kernels like best. To every caller it is a copy.",
        shapes={"hidden_states": "any tensor", "transdata_type": "0, 1 or 2: a vendor's name for the layout"},
        results="like hidden_states",
        check=_check_transdata,
        fake=_fake_transdata,
        tolerance="exact",
    ),
)
