"""Quantising and restoring: the arithmetic that caches, activations and weights share."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.interface.checks import upcast_dtype

LEAST = 1e-7
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255)}


def quantised_rows(value: Tensor, dtype: torch.dtype, *, whole: bool = False) -> tuple[Tensor, Tensor]:
    """Symmetric quantisation with a scale for each row, or one for the whole."""
    value = value.to(upcast_dtype(value))
    magnitude = value.abs()
    if not value.numel():
        largest = magnitude.new_zeros([1] if whole else value.shape[:-1])
    else:
        largest = magnitude.amax().reshape(1) if whole else magnitude.amax(-1)
    scale = largest.clamp(min=LEAST) / _LARGEST[dtype]
    scaled = value / (scale if whole else scale.unsqueeze(-1))
    return rounded_to(scaled, dtype), scale


def rounded_to(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in steps of one, or in the steps of an 8-bit float."""
    if dtype in _RANGES:
        return value.round().clamp(*_RANGES[dtype]).to(dtype)
    return value.clamp(-_LARGEST[dtype], _LARGEST[dtype]).to(dtype)


def stored(value: Tensor, scale: Tensor, zero: Tensor | None, bits: int, dtype: torch.dtype) -> Tensor:
    """Rows [tokens, heads, size] as a cache of 8 or 4 bits holds them."""
    upcast = upcast_dtype(value)
    number = value.to(upcast) / broadcast(scale, value).to(upcast)
    if zero is not None:
        number = number + broadcast(zero, value).to(upcast)
    if bits == 8:
        return rounded_to(number, dtype)
    number = number.round().clamp(0, 15).to(torch.uint8)
    low, high = number.chunk(2, -1)
    return low | (high << 4)


def restored(value: Tensor, scale: Tensor, zero: Tensor | None, bits: int, upcast: torch.dtype) -> Tensor:
    """What `stored` gave, as numbers again."""
    if bits == 4:
        value = torch.cat((value & 15, value >> 4), -1)
    number = value.to(upcast)
    if zero is not None:
        number = number - broadcast(zero, number).to(upcast)
    return number * broadcast(scale, number).to(upcast)


def broadcast(parameter: Tensor, rows: Tensor) -> Tensor:
    """A scale or zero beside rows [..., heads, size]: one for all, for each head, or for each element."""
    heads, size = rows.shape[-2:]
    if parameter.numel() == 1:
        return parameter.reshape(1, 1)
    return parameter.reshape(heads, 1) if parameter.numel() == heads else parameter.reshape(heads, size)
