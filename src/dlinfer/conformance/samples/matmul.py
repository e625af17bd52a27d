"""Samples: linear layers, plain and quantised."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.conformance.sampling import Arguments, Draw, Samples

_LEADS = ((1,), (5,), (2, 3), (17,), (1, 4))
_SIZES = ((16, 8), (64, 48), (128, 24), (96, 64), (8, 8))


# More than kernels for few rows take: behind them kernels mostly go another way.
_MANY = ((49,), (3, 43), (130,))


def _sizes(draw: Draw, label: str) -> tuple[tuple[int, ...], int, int]:
    return draw.choice(_MANY if "many rows" in label else _LEADS), *draw.choice(_SIZES)


def _bias(draw: Draw, label: str, features: int, dtype: torch.dtype | None = None) -> Tensor | None:
    return draw.normal(features, dtype=dtype) if "bias" in label else None


def _linear(draw: Draw, label: str) -> Arguments:
    lead, size, features = _sizes(draw, label)
    x, weight = draw.normal(*lead, size), draw.normal(features, size, scale=size**-0.5)
    if label == "strided":
        x, weight = draw.spaced(x), draw.spaced(weight)
    if label == "transposed weight":
        weight = weight.t().contiguous().t()
    return {"x": x, "weight": weight, "bias": _bias(draw, label, features)}


def _quant(draw: Draw, label: str) -> Arguments:
    lead, size, _ = _sizes(draw, label)
    x = draw.normal(*lead, size, scale=50.0 if label == "large" else 1.0)
    if label == "a row of zeros":
        x.view(-1, size)[0] = 0
    dtype = torch.float8_e4m3fn if label == "float8" else torch.int8
    granularity = "PER_TENSOR" if label == "one scale" else "PER_TOKEN"
    return {
        "x": draw.spaced(x) if label == "strided" else x,
        "quant_dtype": dtype,
        "quant_granularity": granularity,
    }


def _w8a8(draw: Draw, label: str) -> Arguments:
    lead, size, features = _sizes(draw, label)
    kind = torch.float8_e4m3fn if label == "float8" else torch.int8
    if kind == torch.int8:
        a = draw.integers(-128, 128, *lead, size, dtype=kind)
        b = draw.integers(-128, 128, features, size, dtype=kind)
    else:
        a = draw.normal(*lead, size, scale=50, dtype=kind)
        b = draw.normal(features, size, scale=50, dtype=kind)
    rows = torch.Size(lead).numel()
    rms_scale = draw.uniform(1 if label == "one scale" else rows, low=0.001, high=0.02)
    if label == "scales of two dimensions":
        rms_scale = rms_scale.view(*lead, 1)
    linear_scale = draw.uniform(features, 1, low=0.001, high=0.02)
    return {
        "a": a,
        "b": b,
        "rms_scale": rms_scale,
        "linear_scale": linear_scale if label == "scales of two dimensions" else linear_scale.view(-1),
        "out_dtype": draw.dtype,
        "quant_dtype": kind,
        "bias": _bias(draw, label, features),
    }


def _static(draw: Draw, label: str) -> Arguments:
    lead, size, features = _sizes(draw, label)
    return {
        "x": draw.normal(*lead, size, scale=20 if label == "values beyond the range" else 1),
        "weight": draw.integers(-128, 128, features, size, dtype=torch.int8),
        "input_scale": draw.uniform(1, low=0.01, high=0.05).to(draw.dtype),
        "input_offset": draw.integers(
            -20, 20, 1, dtype=torch.int8 if label != "floating offset" else torch.float32
        ),
        "deq_scale": draw.uniform(features, low=1e-5, high=1e-3),
        "out_dtype": draw.dtype,
        "quant_dtype": torch.int8,
        "quant_bias": draw.integers(-5000, 5000, features, dtype=torch.int32) if "bias" in label else None,
    }


def _weight(draw: Draw, label: str) -> Arguments:
    lead, size, features = _sizes(draw, label)
    group = draw.choice((8, size, 4)) if "group" in label or "AWQ" in label else 0
    groups = size // group if group else 1
    given: Arguments = {"x1": draw.normal(*lead, size)}
    if "8 bits" in label:
        given["x2"] = draw.integers(-128, 128, size, features, dtype=torch.int8)
    else:
        given["x2"] = draw.integers(-(2**31), 2**31, size, features // 8, dtype=torch.int32)
    scale = draw.uniform(groups, features, low=0.001, high=0.02).to(draw.dtype)
    given["scale"] = scale if group else scale.view(-1)
    if "AWQ" in label:
        given["offset"] = draw.integers(-(2**31), 2**31, groups, features // 8, dtype=torch.int32)
    elif "offset" in label:
        given["offset"] = draw.integers(-8, 8, groups, features).to(draw.dtype)
    given["bias"] = _bias(draw, label, features)
    given["group_size"] = group
    return given


SAMPLES = {
    "linear": Samples(
        90, ("plain", "bias", "strided", "transposed weight", "bias again", "many rows, bias"), _linear
    ),
    "dynamic_quant": Samples(
        105, ("plain", "large", "a row of zeros", "strided", "one scale", "float8", "many rows"), _quant
    ),
    "linear_w8a8": Samples(
        108, ("plain", "bias", "one scale", "scales of two dimensions", "float8", "many rows"), _w8a8
    ),
    "linear_w8a8_static": Samples(
        105, ("plain", "bias", "values beyond the range", "floating offset", "many rows"), _static
    ),
    "weight_quant_matmul": Samples(
        189,
        (
            "AWQ",
            "AWQ, bias",
            "4 bits",
            "4 bits, groups and offset",
            "8 bits",
            "8 bits, offset and bias",
            "8 bits, groups",
            "AWQ, many rows",
            "8 bits, many rows",
        ),
        _weight,
    ),
}
