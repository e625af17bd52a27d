"""The signature of a call: what decides which kernel runs. Cheap enough to be taken at every call."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

_LONGEST_LIST = 32


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def of_value(value: Any) -> Hashable:
    """Shapes, strides and dtypes of tensors; numbers and words as they are; other objects by type."""
    if type(value) in _PLAIN and value.layout is torch.strided:
        return (value.dtype, value.shape, value.stride(), value.requires_grad)
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return (value.dtype, "nested", value.layout)
        if value.layout != torch.strided:
            return (value.dtype, value.layout, tuple(value.shape))
        return (value.dtype, value.shape, value.stride(), value.requires_grad)
    if value is None or isinstance(value, (bool, int, str, torch.dtype)):
        return value
    if isinstance(value, float):
        # A loop's own number (a step size) would make every call a new signature; its kind is what matters.
        kind: Hashable = float
        return kind if value == value and abs(value) != float("inf") else repr(value)  # noqa: PLR0124
    if isinstance(value, (tuple, list)):
        if len(value) > _LONGEST_LIST:
            return (len(value), tuple(of_value(item) for item in value[:_LONGEST_LIST]))
        return tuple(of_value(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, of_value(item)) for key, item in value.items())
    if isinstance(value, slice):
        return ("slice", value.start.__class__, value.stop.__class__)
    return type(value).__qualname__


def of_call(name: str, args: Any, kwargs: Any) -> Hashable:
    """The signature of a call."""
    return (name, *map(of_value, args), of_value(kwargs) if kwargs else ())
