"""Cases and wrong results in words, for reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dicore.conformance.results import WrongElement
from diopi.table import Entry

_SHOWN = 5
_LONGEST = 8


def argument_lines(entry: Entry, arguments: Mapping[str, Any]) -> list[str]:
    """`input = float32[3, 4] strides [8, 2] offset 1`, one line for each argument that is given."""
    names = [a.name for a in entry.function.arguments if arguments.get(a.name) is not None]
    return [f"{name} = {described(arguments[name])}" for name in names]


def described(value: Any) -> str:
    """A value of a case in one line."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        shown = ", ".join(described(item) for item in value[:_LONGEST])
        return f"[{shown}{', ...' if len(value) > _LONGEST else ''}]"
    return repr(value)


def _tensor(value: torch.Tensor) -> str:
    text = f"{_name(value.dtype)}{list(value.shape)}"
    if not value.is_contiguous():
        text += f" strides {list(value.stride())}"
    if value.storage_offset():
        text += f" offset {value.storage_offset()}"
    if 0 < value.numel() <= _LONGEST and value.layout == torch.strided:
        text += f" = {value.tolist()}"
    return text


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def worst_elements(got: Any, expected: Any) -> list[WrongElement]:
    """The elements that are off most, first the worst."""
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return [WrongElement([], str(expected), str(got))]
    if got.shape != expected.shape or not got.numel():
        return []
    one, other = (_wide(value).reshape(-1) for value in (got, expected))
    error = (one - other).abs()
    agrees = (one == other) | (one.isnan() & other.isnan())
    rank = torch.where(agrees, -1.0, error.nan_to_num(float("inf"), float("inf")))
    picked = rank.topk(min(_SHOWN, rank.numel())).indices
    places = [place for place in picked.tolist() if rank[place] >= 0]
    flat_got, flat_expected = got.reshape(-1), expected.reshape(-1)
    return [
        WrongElement(
            [int(i) for i in torch.unravel_index(torch.tensor(place), got.shape)] if got.dim() else [],
            _number(flat_expected[place]),
            _number(flat_got[place]),
            f"{float(error[place]):.3g}",
        )
        for place in places
    ]


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _number(value: torch.Tensor) -> str:
    number = value.item()
    return f"{number:.9g}" if isinstance(number, float) else str(number)
