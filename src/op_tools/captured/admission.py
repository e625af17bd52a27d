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
    unique = list({id(tensor): tensor for tensor in tensors}.values())
    held = sum(part.untyped_storage().nbytes() for tensor in unique for part in parts_of(tensor))
    limit = memory_limit or limit_for(held, captured.outputs is not None)
    # Judging a sparse or an expanded tensor takes all the elements that it stands for.
    beyond = sum(max(0, _shown(tensor) - _held(tensor)) for tensor in unique)
    if beyond > limit:
        largest = max(unique, key=_shown)
        raise TooLarge(
            f"a tensor of {list(largest.shape)} stands for more than the {_held(largest):,} bytes that it has: "
            f"{_shown(largest):,}; {_limit_text(limit)}"
        )
    _check_values(captured, limit)
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


def _limit_text(limit: int) -> str:
    return f"the limit for this capture is {limit:,} (--memory-limit sets another)"


def _shown(tensor: torch.Tensor) -> int:
    """The bytes of all elements, as a copy would have them."""
    return tensor.numel() * tensor.element_size()


def _held(tensor: torch.Tensor) -> int:
    return sum(part.untyped_storage().nbytes() for part in parts_of(tensor))


def _largest(tensor: Any) -> int:
    whole = isinstance(tensor, torch.Tensor) and tensor.numel() and not tensor.is_floating_point()
    return int(tensor.max()) if whole else 0


def _repeats(values: Any, repeats: Any = None, **_: Any) -> int:
    counts = values if repeats is None else repeats
    if not isinstance(counts, torch.Tensor) or counts.is_floating_point() or not counts.numel():
        return 0
    each = (
        1
        if repeats is None or not isinstance(values, torch.Tensor)
        else max(1, values.numel() // counts.numel())
    )
    return int(counts.clamp(min=0).double().sum()) * each


# The few functions whose results are as large as the values of their inputs say, in elements.
_SIZED_BY_VALUES: dict[str, Callable[..., int]] = {
    "bincount": lambda values, weights=None, minlength=0: max(_largest(values) + 1, int(minlength)),
    "one_hot": lambda values, num_classes=-1: (
        values.numel() * (_largest(values) + 1 if num_classes == -1 else int(num_classes))
    ),
    "repeat_interleave": _repeats,
}


def _check_values(captured: CapturedCall, limit: int) -> None:
    words = captured.name.split(".")
    count = next((_SIZED_BY_VALUES[word] for word in words if word in _SIZED_BY_VALUES), None)
    try:
        wanted = 0 if count is None else 8 * count(*captured.args, **captured.kwargs)
    except (TypeError, ValueError, RuntimeError, AttributeError):  # not arguments that it can run with
        return
    if wanted > limit:
        raise TooLarge(f"its values ask for a result of {wanted:,} bytes; {_limit_text(limit)}")


class _Sizes(TorchDispatchMode):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if any(argument.name == "device" for argument in func._schema.arguments[len(args) :]):
            # Made from nothing (`torch.ones(10**12)`): here too without memory.
            kwargs["device"] = torch.device("meta")
            kwargs.pop("pin_memory", None)
        try:
            result = func(*args, **kwargs)
        except Exception:
            # It needs values to know its size (`masked_select`): at most all of what goes in, or an index for each element.
            for tensor in flat_tensors(args, kwargs):
                each = 8 * max(1, tensor.dim()) if "nonzero" in str(func) else max(8, tensor.element_size())
                self._check(func, tensor.numel() * each)
            raise
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                # Of its storage: an expanded tensor shows more than it has.
                self._check(func, tensor.untyped_storage().nbytes())
        return result

    def _check(self, func: Any, nbytes: int) -> None:
        if nbytes > self.limit:
            raise TooLarge(f"{func} inside it asks for {nbytes:,} bytes; {_limit_text(self.limit)}") from None


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
            result = func(*map_leaves(tuple(args), on_meta), **map_leaves(dict(kwargs), on_meta))
    except TooLarge:
        raise
    except Exception:  # many operators cannot run without values; they are bounded by their inputs
        return
    # Views show more than they have (`expand`, `as_strided`): who compares them copies all of it.
    nbytes = sum(map(_shown, {id(tensor): tensor for tensor in flat_tensors([result], {})}.values()))
    if nbytes > limit:
        raise TooLarge(f"its results show {nbytes:,} bytes; {_limit_text(limit)}")
