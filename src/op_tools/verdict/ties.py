"""Positions of picked values (argmax, sort, max pooling): another position is as good where the values tie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from op_tools.verdict.closeness import nan
from op_tools.verdict.lengths import function_name

# Where `dim` stands among the arguments, and its default.
_DIM: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("argmax", "argmin", "max", "min"), (1, None)),
    **dict.fromkeys(("sort", "argsort", "median", "nanmedian", "mode", "cummax", "cummin"), (1, -1)),
    **dict.fromkeys(("topk", "kthvalue"), (2, -1)),
}
_ALL_DIFFERENT = frozenset(("sort", "argsort", "topk"))


def ties(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    got: torch.Tensor,
    expected: torch.Tensor,
) -> str:
    """Empty where `got` picks values equal to those that `expected` picks; otherwise what is wrong."""
    name = function_name(func)
    source = args[0] if args else kwargs.get("input", kwargs.get("self"))
    if not isinstance(source, torch.Tensor):
        return "positions differ"
    if kwargs.get("stable"):
        return "positions of a stable sort differ"
    flat = flattened(name, source, args, kwargs, got)
    if flat is None or got.dtype not in (
        torch.int32,
        torch.int64,
    ):  # values of small whole numbers are no positions
        return "positions differ"
    values, got, expected, dim = _aligned(*flat, expected)
    if got.numel() == 0:
        return ""
    if bool((got < 0).any()) or bool((got >= values.shape[dim]).any()):
        return "positions lie outside the input"
    if name in _ALL_DIFFERENT and bool((got.sort(dim).values.diff(dim=dim) == 0).any()):
        return "a position is picked twice"
    picked, wanted = values.gather(dim, got), values.gather(dim, expected)
    if unordered(func, args, kwargs) is not None:
        picked, wanted = picked.sort(dim).values, wanted.sort(dim).values
    wrong = (picked != wanted) & ~(nan(picked) & nan(wanted))
    count = int(wrong.sum())
    return f"{count} of {got.numel()} positions pick another value" if count else ""


def unordered(func: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The dimension along which the results may come in any order; None where their order is given."""
    if func is None or function_name(func) != "topk":
        return None
    sort = kwargs.get("sorted", args[4] if len(args) > 4 else True)
    return None if sort else int(kwargs.get("dim", args[2] if len(args) > 2 else -1))


def pairs_differ(
    func: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]
) -> str:
    """What is wrong if results in an order of their own do not stand beside their positions."""
    dim = unordered(func, args, kwargs)
    if dim is None or len(results) != 2 or not all(isinstance(value, torch.Tensor) for value in results):
        return ""
    source = args[0] if args else kwargs.get("input", kwargs.get("self"))
    values, positions = results
    if not isinstance(source, torch.Tensor) or not source.dim() or positions.shape != values.shape:
        return ""
    picked = source.gather(dim, positions.clamp(0, source.shape[dim] - 1))
    differ = (picked != values) & ~(nan(picked) & nan(values))
    return f"{int(differ.sum())} values do not stand beside their positions" if bool(differ.any()) else ""


def flattened(
    name: str, source: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], got: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int] | None:
    """(values, positions, dim) such that the positions count along dim."""
    if "max_pool" in name:
        spatial = next((count for count in (1, 2, 3) if f"{count}d" in name), None)
        if spatial is None or got.dim() < spatial:
            return None
        return source.flatten(-spatial), got.flatten(-spatial), -1
    if name not in _DIM:
        return None
    position, default = _DIM[name]
    dim = kwargs.get("dim", args[position] if len(args) > position else default)
    # sort.stable has `stable` in front of the dim in some overloads.
    if isinstance(dim, bool):
        dim = args[position + 1] if len(args) > position + 1 else default
    if dim is None:
        return source.reshape(-1), got.reshape(-1), 0
    return (source, got, int(dim)) if source.dim() else (source.reshape(1), got.reshape(1), 0)


def _aligned(
    values: torch.Tensor, got: torch.Tensor, dim: int, expected: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Positions with as many dimensions as the values: a reduced dimension comes back with length 1."""
    dim = dim % max(values.dim(), 1)
    expected = expected.reshape(got.shape) if expected.numel() == got.numel() else expected
    if got.dim() == values.dim() - 1:
        got, expected = got.unsqueeze(dim), expected.unsqueeze(dim)
    return values, got, expected, dim
