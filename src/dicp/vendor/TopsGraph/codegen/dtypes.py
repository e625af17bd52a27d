"""Dtypes in programs: the builder's names, and the bytes of a constant."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

__all__ = ["BY_NAME", "NAMES", "values_of"]

NAMES = {
    torch.bool: "PRED",
    torch.int8: "S8",
    torch.int16: "S16",
    torch.int32: "S32",
    torch.int64: "S64",
    torch.uint8: "U8",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
}
BY_NAME = {name: dtype for dtype, name in NAMES.items()}
_ELEMENTS = {
    "PRED": "bool",
    "S8": "int8_t",
    "S16": "int16_t",
    "S32": "int32_t",
    "S64": "int64_t",
    "U8": "uint8_t",
    "F16": "uint16_t",
    "BF16": "uint16_t",
    "F32": "float",
}


def values_of(value: float | Sequence[float], dtype: torch.dtype) -> tuple[str, list[str]]:
    """The C++ type of the elements of a constant, and each element; half dtypes are written as their bits."""
    tensor = torch.tensor(value).reshape(-1).to(dtype)
    if dtype in (torch.float16, torch.bfloat16):
        bits = tensor.view(torch.int16).to(torch.int64).bitwise_and(0xFFFF)
        texts = [f"0x{item:04x}" for item in bits.tolist()]
    elif dtype == torch.float32:
        texts = [_float(item) for item in tensor.tolist()]
    elif dtype == torch.bool:
        texts = [str(item).lower() for item in tensor.tolist()]
    else:
        texts = [integer(item) for item in tensor.tolist()]
    return _ELEMENTS[NAMES[dtype]], texts


def integer(value: int) -> str:
    """An int64_t; the smallest one has no literal."""
    if value == -(1 << 63):
        return "INT64_MIN"
    return str(value) if abs(value) < 1 << 31 else f"INT64_C({value})"


def _float(value: float) -> str:
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value!r}f"
