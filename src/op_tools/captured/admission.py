"""How much memory a call would ask for, found out without asking for it.

The sizes a capture names are not to be trusted: `repeat(x, 10**6, 10**6)` is a small file. The call first runs
on `meta` tensors, which have shapes and no memory, and every operator inside it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from op_tools.replay.placing import map_tensors

__all__ = ["TooLarge", "check_memory", "limit_for"]

# Room for intermediate results, and for operators whose output is by nature larger than their input.
_ROOM = 16
_LEAST_LIMIT = 1 << 30


class TooLarge(ValueError):
    """The call asks for more memory than its capture justifies."""


def limit_for(captured_bytes: int, has_outputs: bool) -> int:
    """The bound where the user gives none. Without captured outputs there is less to go by."""
    return max(_LEAST_LIMIT if has_outputs else 4 * _LEAST_LIMIT, _ROOM * captured_bytes)


class _Sizes(TorchDispatchMode):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _asked_for(tensor) > self.limit:
                raise TooLarge(
                    f"{func} inside it asks for {_asked_for(tensor):,} bytes; the limit for this capture is "
                    f"{self.limit:,} (--memory-limit sets another)"
                )
        return result


def _asked_for(tensor: torch.Tensor) -> int:
    """Bytes of its storage: an expanded tensor shows more than it has."""
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0


def check_memory(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], limit: int
) -> None:
    """Raise TooLarge where the call would allocate more than `limit` bytes at once."""

    def on_meta(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            raise NotImplementedError
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")

    def other(value: Any) -> Any:
        return torch.device("meta") if isinstance(value, torch.device) else value

    try:
        with torch.no_grad(), _Sizes(limit):
            func(*map_tensors(tuple(args), on_meta, other), **map_tensors(dict(kwargs), on_meta, other))
    except TooLarge:
        raise
    except Exception:  # many operators cannot run without values; they are bounded by their inputs
        return
