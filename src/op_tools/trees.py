"""The nested lists, tuples and dicts that arguments and results of a call are, and the parts of sparse tensors: walked and
rebuilt in one way."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

_native: Any = None
with contextlib.suppress(ImportError):  # `op_tools.engine.native` says it
    _native = importlib.import_module("op_tools._native")

__all__ = [
    "SPARSE_PARTS",
    "flat_results",
    "flat_tensors",
    "map_leaves",
    "map_tensors",
    "parts_of",
    "tensors_of",
]

_RESULTS = (torch.Tensor, bool, int, float, complex)

# The methods that give the strided tensors of which a sparse one consists.
SPARSE_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with memory of which a tensor consists: its indices and values where it is sparse."""
    if tensor.layout is torch.strided:
        return [tensor]
    return [getattr(tensor, part)() for part in SPARSE_PARTS.get(tensor.layout, ())]


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tree with `change` applied to every leaf; named tuples and torch's return types stay what they are."""
    if isinstance(value, list):
        return [map_leaves(item, change) for item in value]
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    kind = type(value)
    if not isinstance(value, tuple) or kind is torch.Size:
        return change(value)
    items = [map_leaves(item, change) for item in value]
    # torch.return_types take one sequence, as tuple does
    return kind(*items) if hasattr(value, "_fields") else kind(items)


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same tree with `change` applied to its tensors."""
    return map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def _collect(values: Iterable[Any], kinds: Any, found: list[Any]) -> None:
    for value in values:
        if isinstance(value, kinds):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, kinds, found)
        elif isinstance(value, dict):
            _collect(value.values(), kinds, found)


def flat_results(value: Any) -> list[Any]:
    """Tensors and numbers of a result in tree order; None and other objects are left out."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[Any] = []
    _collect((value,), _RESULTS, found)
    return found


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors of a tree, in order."""
    if _native is not None:
        return _native.tensors_of(value)  # type: ignore[no-any-return]
    found: list[torch.Tensor] = []
    _collect((value,), torch.Tensor, found)
    return found


def flat_tensors(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments of a call, in the order that `wants_grad` and `written` count them."""
    if _native is not None:
        return _native.flat_tensors(args, kwargs)  # type: ignore[no-any-return]
    found: list[torch.Tensor] = []
    _collect(args, torch.Tensor, found)
    if kwargs:
        _collect(kwargs.values(), torch.Tensor, found)
    return found
