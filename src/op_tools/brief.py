"""A call's values on one line: what a row of a log or a CSV file says of them."""

from __future__ import annotations

from typing import Any

import torch

_LONGEST = 60
_MOST_ITEMS = 16
_texts: dict[Any, str] = {}


def brief(value: Any) -> str:
    """`(float32[8, 128]@dev:0, 2.0)`: dtype, shape and device of tensors, other values shortened."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        inside = ", ".join(brief(item) for item in value[:_MOST_ITEMS])
        more = ", ..." if len(value) > _MOST_ITEMS else ""
        return f"[{inside}{more}]" if isinstance(value, list) else f"({inside}{more})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {brief(item)}" for key, item in value.items()) + "}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def of_call(args: Any, kwargs: Any) -> str:
    """The arguments of a call on one line."""
    parts = [brief(value) for value in args]
    parts += [f"{key}={brief(value)}" for key, value in kwargs.items()]
    return f"({', '.join(parts)})"


def _tensor(tensor: torch.Tensor) -> str:
    try:
        key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
    except (RuntimeError, NotImplementedError):  # sparse and nested tensors cannot say
        return f"{_dtype(tensor.dtype)} {tensor.layout} {type(tensor).__name__}@{tensor.device}"
    known = _texts.get(key)
    if known is None:
        if len(_texts) > 20_000:
            _texts.clear()
        strides = "" if tensor.is_contiguous() else f" stride {list(tensor.stride())}"
        known = _texts[key] = f"{_dtype(tensor.dtype)}{list(tensor.shape)}@{tensor.device}{strides}"
    return known


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
