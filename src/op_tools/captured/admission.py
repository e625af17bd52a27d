"""Whether a captured call may run at all: a function that may be called, values that were saved, bounded memory.

The sizes a capture names are not to be trusted: `repeat(x, 10**6, 10**6)` is a small file. The call first runs
on `meta` tensors, which have shapes and no memory, and every operator inside it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from op_tools.captured.load import CapturedCall, opaque_values
from op_tools.names import function_named
from op_tools.trees import flat_results, flat_tensors, map_leaves, parts_of

__all__ = ["NotReplayable", "TooLarge", "admitted", "limit_for"]

# Room for intermediate results, and for operators whose output is by nature larger than their input.
_ROOM = 16
_LEAST_LIMIT = 1 << 30
# Calls of one kind are asked once: training repeats the same few thousand.
_MOST_REMEMBERED, _LONGEST_KEY = 100_000, 500
_small_enough: set[Any] = set()


class NotReplayable(Exception):
    """Something that the call needs was not saved, or does not fit it; the message says what."""


class TooLarge(ValueError):
    """The call asks for more memory than its capture justifies."""


def admitted(
    captured: CapturedCall, device: torch.device, *, allow: tuple[str, ...] = (), memory_limit: int = 0
) -> tuple[Callable[..., Any], CapturedCall]:
    """The function to call and the call as it is made on `device`.

    Raises NotReplayable, RefusedName where the capture names a function that is never called, and TooLarge. `allow`
    names packages whose functions may run beside PyTorch's own; `memory_limit` is in bytes, 0: by the size of the capture.
    """
    if not captured.name:
        raise NotReplayable("neither the file nor the names of its folders say which operator it is")
    captured = _named_for(captured, device)
    func = function_named(captured.name, allow=allow)
    if missing := opaque_values(captured):
        shown = ", ".join(f"{value.type_name} ({value.text})" for value in missing[:3])
        raise NotReplayable(f"arguments of which only a description was saved: {shown}")
    _check_captured(func, captured, memory_limit)
    return func, captured


def _named_for(captured: CapturedCall, device: torch.device) -> CapturedCall:
    """`x.cuda()` is a method named after the device it was captured on; elsewhere it is `x.to(device)`."""
    kind = captured.device.partition(":")[0]
    if not captured.args or kind in ("", "cpu", device.type) or captured.name != f"torch.Tensor.{kind}":
        return captured
    return replace(captured, name="torch.Tensor.to", args=(captured.args[0], device), kwargs={})


def _check_captured(func: Callable[..., Any], captured: CapturedCall, memory_limit: int) -> None:
    results = (captured.outputs, captured.written, captured.grad_inputs, captured.grad_outputs)
    tensors = flat_tensors([captured.args, *(part or () for part in results)], captured.kwargs)
    values = flat_results([captured.args, captured.kwargs])
    numbers = [value for value in values if not isinstance(value, torch.Tensor)]
    key = (func, memory_limit, captured.outputs is None, *map(_layout_of, tensors), repr(numbers))
    if key in _small_enough:
        return
    # Bytes that are there: what an expanded or a sparse tensor shows may be any number.
    unique = {id(tensor): tensor for tensor in tensors}.values()
    held = sum(part.untyped_storage().nbytes() for tensor in unique for part in parts_of(tensor))
    limit = memory_limit or limit_for(held, captured.outputs is not None)
    for tensor in tensors:
        # Judging a sparse tensor takes all the elements that it stands for.
        if tensor.layout is not torch.strided and tensor.numel() * tensor.element_size() > limit:
            raise TooLarge(f"a sparse tensor of {list(tensor.shape)} stands for more than {limit:,} bytes")
    _check_memory(func, captured.args, captured.kwargs, limit)
    if len(_small_enough) > _MOST_REMEMBERED:
        _small_enough.clear()
    if len(key) < _LONGEST_KEY:
        _small_enough.add(key)


def _layout_of(tensor: torch.Tensor) -> Any:
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return tensor.shape, strides, tensor.dtype, tensor.layout


def limit_for(captured_bytes: int, has_outputs: bool) -> int:
    """The bound where the user gives none. Without captured outputs there is less to go by."""
    return max(_LEAST_LIMIT if has_outputs else 4 * _LEAST_LIMIT, _ROOM * captured_bytes)


class _Sizes(TorchDispatchMode):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                # Of its storage: an expanded tensor shows more than it has.
                nbytes = tensor.untyped_storage().nbytes()
                if nbytes > self.limit:
                    raise TooLarge(
                        f"{func} inside it asks for {nbytes:,} bytes; the limit for this capture is {self.limit:,} "
                        f"(--memory-limit sets another)"
                    )
        return result


def _check_memory(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], limit: int
) -> None:
    """Raise TooLarge where the call would allocate more than `limit` bytes at once."""

    def on_meta(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("meta")
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided:
            raise NotImplementedError
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")

    try:
        with torch.no_grad(), _Sizes(limit):
            func(*map_leaves(tuple(args), on_meta), **map_leaves(dict(kwargs), on_meta))
    except TooLarge:
        raise
    except Exception:  # many operators cannot run without values; they are bounded by their inputs
        return
