"""Watches the ATen calls that a piece of code makes on the CPU, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from diopi.lowering import bound, overload_name

# Given the overload and its arguments before a call; gives back what to do with the result, or None.
Watch = Callable[[str, dict[str, Any]], Callable[[Any], None] | None]


@cache
def _name(overload: torch._ops.OpOverload) -> str | None:
    """The table's name of an ATen overload; None for other namespaces and for views, which compute nothing."""
    if overload.namespace != "aten" or _is_view(overload):
        return None
    return overload_name(overload)


def _is_view(overload: torch._ops.OpOverload) -> bool:
    """A result that is an alias of an argument and is not written."""
    returned = [r.alias_info for r in overload._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returned)


class CallWatcher(TorchDispatchMode):
    """While active, every ATen call that computes something is shown to `watch`."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        finish = self._watch(name, bound(func, args, kwargs)) if name else None
        result = func(*args, **kwargs)
        if finish is not None:
            finish(result)
        return result


def extent(tensor: torch.Tensor) -> int:
    """The number of elements of storage that a tensor spans."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor as they are now, with its strides and without what else its storage holds."""
    plain = tensor.detach()
    span = plain.as_strided((extent(plain),), (1,), plain.storage_offset()).clone()
    return span.as_strided(plain.shape, plain.stride(), 0)


def template(tensor: torch.Tensor) -> torch.Tensor:
    """Shape, strides and dtype only: what a caller allocates for an output."""
    dense = extent(tensor) <= tensor.numel()
    if not dense:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def each_tensor(value: Any) -> list[torch.Tensor]:
    """The tensors of an argument or a result: one, none, or those of a list."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in each_tensor(item)]
    return []
