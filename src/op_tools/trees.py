"""The nested lists, tuples and dicts that arguments and results of a call are: walked and rebuilt in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["flat_results", "flat_tensors", "map_leaves"]


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tree with `change` applied to every leaf; named tuples and torch's return types stay what they are."""
    kind = type(value)
    if kind is list:
        return [map_leaves(item, change) for item in value]
    if kind is tuple:
        return tuple(map_leaves(item, change) for item in value)
    if kind is dict:
        return {key: map_leaves(item, change) for key, item in value.items()}
    if kind is torch.Size or not isinstance(value, tuple | list | dict):
        return change(value)
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    items = [map_leaves(item, change) for item in value]
    if isinstance(value, list):
        return items
    # torch.return_types take one sequence, as tuple does
    return kind(*items) if hasattr(value, "_fields") else kind(items)


def flat_results(value: Any) -> list[Any]:
    """Tensors and numbers of a result in tree order; None and other objects are left out."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[Any] = []
    _flatten(value, found)
    return found


def _flatten(value: Any, found: list[Any]) -> None:
    if isinstance(value, (torch.Tensor, bool, int, float, complex)):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _flatten(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _flatten(item, found)


def flat_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensor inputs of a call in the order that `wants_grad` and `written` count them."""
    found: list[Any] = []
    _flatten(list(args), found)
    _flatten(dict(kwargs), found)
    return [value for value in found if isinstance(value, torch.Tensor)]
