"""Declarations: linear layers, plain and quantised, and the change of layouts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.interface.checks import (
    FLOATS,
    QUANTISED,
    alike,
    check_quantised,
    fake_hidden,
    fake_quantised,
    has_dtype,
    has_rank,
    has_shape,
    listed,
    positive,
    same_device,
    same_dtype,
    upcast_dtype,
)
from dlinfer.interface.declaration import Operator

# ---- plain ----


def check_bias(
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
        has_shape(argument, bias, [features], f"one for each output feature of {of}")
        same_device("the input", like, argument, bias)
        has_dtype(argument, bias, dtypes, why)


def _check_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    has_dtype("x", x)
    has_rank("weight", weight, 2)
    if not x.dim() or x.shape[-1] != weight.shape[1]:
        raise wrong("x", f"has shape {list(x.shape)}, expected [..., {weight.shape[1]}] for weight")
    alike("x", x, "weight", weight)
    check_bias(bias, weight.shape[0], x, "weight")
    if bias is not None:
        same_dtype("x", x, "bias", bias)


def _fake_linear(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty([*x.shape[:-1], weight.shape[0]])


def _check_transdata(transdata_type: int) -> None:
    if transdata_type not in (0, 1, 2):
        raise wrong("transdata_type", f"is {transdata_type}, expected 0, 1 or 2")


# ---- quantised ----

GRANULARITIES = ("PER_TOKEN", "PER_TENSOR")
NIBBLES = 8  # 4-bit elements in an int32


def _check_quant(x: Tensor, quant_dtype: torch.dtype, quant_granularity: str) -> None:
    has_dtype("x", x)
    if not x.dim():
        raise wrong("x", "is a single number, expected [..., features]")
    check_quantised(quant_dtype)
    if quant_granularity not in GRANULARITIES:
        raise wrong("quant_granularity", f"is {quant_granularity!r}, expected {' or '.join(GRANULARITIES)}")


def _fake_quant(x: Tensor, quant_dtype: torch.dtype, quant_granularity: str) -> tuple[Tensor, Tensor]:
    quantised, scale = fake_quantised(x, quant_dtype)
    return quantised, scale if quant_granularity == "PER_TOKEN" else x.new_empty([1], dtype=upcast_dtype(x))


def _check_w8a8(
    a: Tensor,
    b: Tensor,
    rms_scale: Tensor,
    linear_scale: Tensor,
    out_dtype: torch.dtype,
    quant_dtype: torch.dtype,
    bias: Tensor | None,
) -> None:
    check_quantised(quant_dtype)
    for argument, value in (("a", a), ("b", b)):
        has_dtype(argument, value, (quant_dtype,), ", the quant_dtype")
    _product("a", a, "b", b, out_dtype)
    rows = a.numel() // max(a.shape[-1], 1)
    has_dtype("rms_scale", rms_scale, FLOATS)
    has_dtype("linear_scale", linear_scale, FLOATS)
    same_device("a", a, "rms_scale", rms_scale)
    same_device("a", a, "linear_scale", linear_scale)
    if rms_scale.numel() not in (1, rows):
        raise wrong("rms_scale", f"has {rms_scale.numel()} elements, expected {rows} (rows of a) or 1")
    if linear_scale.numel() not in (1, b.shape[0]):
        raise wrong(
            "linear_scale", f"has {linear_scale.numel()} elements, expected {b.shape[0]} (rows of b) or 1"
        )
    check_bias(bias, b.shape[0], a, "b")


def _product(first: str, a: Tensor, second: str, b: Tensor, out_dtype: torch.dtype | None = None) -> None:
    has_rank(second, b, 2)
    if not a.dim() or a.shape[-1] != b.shape[1]:
        raise wrong(first, f"has shape {list(a.shape)}, expected [..., {b.shape[1]}] for {second}")
    same_device(first, a, second, b)
    if out_dtype is not None and out_dtype not in FLOATS:
        raise wrong("out_dtype", f"is {out_dtype}, expected {listed(FLOATS)}")


def _fake_w8a8(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    return a.new_empty([*a.shape[:-1], b.shape[0]], dtype=out_dtype)


def _check_static(
    x: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    input_offset: Tensor,
    deq_scale: Tensor,
    out_dtype: torch.dtype,
    quant_dtype: torch.dtype,
    quant_bias: Tensor | None,
) -> None:
    has_dtype("x", x)
    if quant_dtype != torch.int8:
        raise wrong("quant_dtype", f"is {quant_dtype}, expected torch.int8")
    has_dtype("weight", weight, (torch.int8,))
    _product("x", x, "weight", weight, out_dtype)
    for argument, value in (("input_scale", input_scale), ("input_offset", input_offset)):
        same_device("x", x, argument, value)
        if value.numel() != 1:
            raise wrong(argument, f"has {value.numel()} elements, expected 1")
    has_dtype("input_scale", input_scale, FLOATS)
    if input_offset.is_complex() or input_offset.dtype == torch.bool:
        raise wrong("input_offset", f"dtype is {listed([input_offset.dtype])}, expected a real number's")
    has_shape("deq_scale", deq_scale, [weight.shape[0]], "one for each row of weight")
    has_dtype("deq_scale", deq_scale, FLOATS)
    same_device("x", x, "deq_scale", deq_scale)
    why = ": it is added to the integer product"
    check_bias(quant_bias, weight.shape[0], x, "weight", "quant_bias", (torch.int32,), why)


def _fake_static(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    return x.new_empty([*x.shape[:-1], weight.shape[0]], dtype=out_dtype)


def _check_weight(
    x1: Tensor, x2: Tensor, scale: Tensor, offset: Tensor | None, bias: Tensor | None, group_size: int
) -> None:
    has_dtype("x1", x1)
    has_rank("x2", x2, 2)
    has_dtype("x2", x2, (torch.int32, torch.int8))
    if not x1.dim() or x1.shape[-1] != x2.shape[0]:
        raise wrong("x1", f"has shape {list(x1.shape)}, expected [..., {x2.shape[0]}] for x2")
    same_device("x1", x1, "x2", x2)
    positive("group_size", group_size, zero=True)
    rows = x2.shape[0]
    features = x2.shape[1] * (NIBBLES if x2.dtype == torch.int32 else 1)
    if group_size and rows % group_size:
        raise wrong("group_size", f"is {group_size}, which does not divide the {rows} rows of x2")
    groups = rows // group_size if group_size else 1
    has_dtype("scale", scale, FLOATS)
    same_device("x1", x1, "scale", scale)
    if not _by_group(scale, groups, features):
        raise wrong(
            "scale",
            f"has shape {list(scale.shape)}, expected [{groups}, {features}] (rows of x2 by group_size, output features)",
        )
    _check_offset(offset, x1, x2, groups, features)
    check_bias(bias, features, x1, "x2")


def _by_group(value: Tensor, groups: int, features: int) -> bool:
    """[groups, features], or [features] for one group."""
    return value.dim() > 0 and value.shape[-1] == features and value.numel() == groups * features


def _check_offset(offset: Tensor | None, x1: Tensor, x2: Tensor, groups: int, features: int) -> None:
    if offset is None:
        return
    same_device("x1", x1, "offset", offset)
    if offset.dtype == torch.int32:
        if x2.dtype != torch.int32:
            raise wrong("offset", "is packed (int32), but x2 is not: give it in a floating dtype")
        has_shape("offset", offset, [groups, x2.shape[1]], "groups of x2, packed output features")
        return
    has_dtype("offset", offset, (*FLOATS, torch.int32))
    if not _by_group(offset, groups, features):
        raise wrong("offset", f"has shape {list(offset.shape)}, expected [{groups}, {features}] like scale")


def _fake_weight(x1: Tensor, x2: Tensor) -> Tensor:
    features = x2.shape[1] * (NIBBLES if x2.dtype == torch.int32 else 1)
    return x1.new_empty([*x1.shape[:-1], features])


_DTYPES = listed(QUANTISED)


# ---- declarations ----

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
        fake=fake_hidden,
        tolerance="exact",
    ),
    Operator(
        name="dynamic_quant",
        schema='(Tensor x, ScalarType quant_dtype, str quant_granularity="PER_TOKEN") -> (Tensor, Tensor)',
        summary="Symmetric quantisation: scale is the largest magnitude (at least 1e-7) over the largest number of the dtype"
        " (127 or 448); the result is x / scale, for int8 rounded with halves to even.",
        shapes={
            "x": "[..., features], floating",
            "quant_dtype": _DTYPES,
            "quant_granularity": "PER_TOKEN: a scale for each row; PER_TENSOR: one scale",
        },
        results="(quantised x, scales [...] or [1] in float32)",
        check=_check_quant,
        fake=_fake_quant,
        tolerance="quantised",
    ),
    Operator(
        name="linear_w8a8",
        schema="(Tensor a, Tensor b, Tensor rms_scale, Tensor linear_scale, ScalarType out_dtype, ScalarType quant_dtype,"
        " Tensor? bias=None) -> Tensor",
        summary="The product of quantised activations and weights, summed exactly (int8) or in float32, times both scales,"
        " plus bias.",
        shapes={
            "a": "[..., in], quant_dtype",
            "b": "[out, in], quant_dtype",
            "rms_scale": "floating: one for each row of a, in any shape, or one for all",
            "linear_scale": "floating: one for each row of b, in any shape, or one for all",
            "out_dtype": "floating",
            "quant_dtype": _DTYPES,
            "bias": "[out]",
        },
        results="[..., out], out_dtype",
        check=_check_w8a8,
        fake=_fake_w8a8,
        tolerance="sum",
    ),
    Operator(
        name="linear_w8a8_static",
        schema="(Tensor x, Tensor weight, Tensor input_scale, Tensor input_offset, Tensor deq_scale, ScalarType out_dtype,"
        " ScalarType quant_dtype, Tensor? quant_bias=None) -> Tensor",
        summary="A linear layer whose activations are quantised with a fixed scale: q = round(x / input_scale) +"
        " input_offset, clamped to int8; the result is (q times weight + quant_bias) * deq_scale.",
        shapes={
            "x": "[..., in], floating",
            "weight": "[out, in], int8",
            "input_scale": "1 element, floating",
            "input_offset": "1 element, any number dtype",
            "deq_scale": "[out], floating: input_scale times the scales of weight",
            "out_dtype": "floating",
            "quant_dtype": "int8",
            "quant_bias": "[out], int32: bias and offset folded into the integer product",
        },
        results="[..., out], out_dtype",
        check=_check_static,
        fake=_fake_static,
        tolerance="sum",
    ),
    Operator(
        name="weight_quant_matmul",
        schema="(Tensor x1, Tensor x2, Tensor scale, Tensor? offset=None, Tensor? bias=None, SymInt group_size=0) -> Tensor",
        summary="x1 times a weight that is stored in 4 or 8 bits. int8: (x2 + offset) * scale. int32 holds 8 elements of 4"
        " bits. With an int32 offset both are packed as AWQ checkpoints are: nibbles, from the low one, are elements"
        " 0 2 4 6 1 3 5 7 and unsigned, and an element is (x2 - offset) * scale. With a floating offset or none, nibbles are"
        " in order and signed (-8 to 7), and an element is (x2 + offset) * scale.",
        shapes={
            "x1": "[..., in], floating",
            "x2": "[in, out / 8], int32, or [in, out], int8",
            "scale": "[groups, out] or [out], floating",
            "offset": "[groups, out / 8], int32, or [groups, out], floating",
            "bias": "[out]",
            "group_size": "rows of x2 that share a scale; 0: all",
        },
        results="[..., out], dtype of x1",
        check=_check_weight,
        fake=_fake_weight,
        tolerance="sum",
    ),
)
