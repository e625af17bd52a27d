"""The names and numbers that GE has for dtypes."""

from __future__ import annotations

import torch

from dicp.errors import UnsupportedError

__all__ = ["CARRIERS", "GRAPH_DTYPES", "NUMBERS", "dtype_named", "dtype_numbered", "name_of", "number_of"]

_NAMES = {
    torch.float32: "FLOAT",
    torch.float16: "FLOAT16",
    torch.bfloat16: "BF16",
    torch.int64: "INT64",
    torch.int32: "INT32",
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}

NUMBERS = {"FLOAT": 0, "FLOAT16": 1, "INT32": 3, "UINT8": 4, "INT64": 9, "BOOL": 12, "BF16": 27}
"""Attributes such as `dst_type` have the number (enum DataType of graph/types.h)."""

GRAPH_DTYPES = frozenset(_NAMES)
"""What a graph in JSON may have: its loader knows these names."""

CARRIERS = {
    torch.bool: (torch.uint8, torch.int32, torch.float32),
    torch.uint8: (torch.int32, torch.float32),
    torch.int32: (torch.int64,),
    torch.int64: (torch.int32,),
    torch.bfloat16: (torch.float32,),
    torch.float16: (torch.float32,),
    torch.float32: (),
}
"""What values of a dtype may be computed in by an operator that does not take them.

Sizes and indices of one tensor fit 32 bits.
"""


def name_of(dtype: torch.dtype) -> str:
    name = _NAMES.get(dtype)
    if name is None:
        raise UnsupportedError(f"GE graphs have no {dtype}; they have {', '.join(map(str, _NAMES))}")
    return name


def number_of(dtype: torch.dtype) -> int:
    return NUMBERS[name_of(dtype)]


def dtype_named(name: str) -> torch.dtype:
    return _DTYPES[name.removeprefix("DT_")]


def dtype_numbered(number: int) -> torch.dtype:
    return _DTYPES[next(name for name, value in NUMBERS.items() if value == number)]
