"""ATen calls that a piece of code makes on the CPU, forward and backward: how they are recorded and written down.

Of a call are kept shapes, strides, dtypes, attributes, and what kind of values its tensors held. Values themselves are not
kept, but for small integer tensors: indices, lengths and offsets that belong together. A value is a JSON value; tensors and
dtypes are objects of one key:

    {"t": [dtype, shape, strides or null, kind, ...]}   kind n: normal with a standard deviation; u: uniform between two bounds;
                                                        c: one constant; m: a mask of one number among zeros, with its rate;
                                                        i: integers in a range; v: these integers; b: so many of so many true
    {"d": "float32"}
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from diopi.lowering import bound, overload_name

# Given the overload and its arguments before a call; gives back what to do with the result, or None.
OnCall = Callable[[str, dict[str, Any]], Callable[[Any], None] | None]


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


class CallRecorder(TorchDispatchMode):
    """While active, every ATen call that computes something is told to `on_call`."""

    def __init__(self, on_call: OnCall) -> None:
        super().__init__()
        self._on_call = on_call

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        finish = self._on_call(name, bound(func, args, kwargs)) if name else None
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


_FEW = 64  # integers of a tensor that are kept as they are
_LEFT_OUT = ("device", "layout", "pin_memory", "memory_format")


def encoded(value: Any) -> Any:
    """One argument; TypeError if it is of a kind that a case cannot have."""
    if isinstance(value, torch.Tensor):
        return {"t": [*_place(value), *_kind(value.detach())]}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    if isinstance(value, torch.dtype):
        return {"d": str(value).removeprefix("torch.")}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} cannot be written down")


def encoded_call(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their schema names, without those that say where tensors live."""
    return {name: encoded(value) for name, value in values.items() if name not in _LEFT_OUT}


def encoded_result(result: Any) -> list[Any]:
    """The results of a call: shape, strides and dtype of each."""
    results = result if isinstance(result, tuple) else [result]
    return [_place_of(item) for item in results]


def signature(overload: str, values: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two calls the same but for the values of their tensors."""
    return (overload, *(_signed(v) for name, v in values.items() if name not in _LEFT_OUT))


def _signed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.stride())
    if isinstance(value, list | tuple):
        return tuple(_signed(item) for item in value)
    return (type(value), str(value))


def _place(tensor: torch.Tensor) -> list[Any]:
    strides = None if tensor.is_contiguous() else list(tensor.stride())
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), strides]


def _place_of(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_place_of(item) for item in value]
    return {"t": _place(value)} if isinstance(value, torch.Tensor) else None


def _kind(tensor: torch.Tensor) -> list[Any]:
    if not tensor.numel():
        return ["c", 0]
    if tensor.dtype == torch.bool:
        return ["b", int(tensor.sum()), tensor.numel()]
    if tensor.dtype.is_complex:
        return ["n", _short(tensor.abs().double().mean().item())]
    if not tensor.dtype.is_floating_point:
        if tensor.numel() <= _FEW:
            return ["v", tensor.flatten().tolist()]
        return ["i", int(tensor.min()), int(tensor.max())]
    upcast = tensor.double()
    lowest, highest = upcast.min().item(), upcast.max().item()
    if lowest == highest:
        return ["c", lowest]
    zero = upcast == 0
    if len(upcast[~zero].unique()) == 1:
        return ["m", upcast[~zero][0].item(), _short(1 - zero.double().mean().item())]
    finite = upcast[upcast.isfinite()]
    if finite.numel() and finite.min() >= 0:
        return ["u", _short(finite.min().item()), _short(finite.max().item())]
    return ["n", _short(finite.std().item()) if finite.numel() > 1 else 1.0]


def _short(number: float) -> float:
    """Three digits: what a captured number was about."""
    return float(f"{number:.3g}") if math.isfinite(number) else 1.0


# ---- reading ----


def decoded(value: Any, random: torch.Generator) -> Any:
    """One argument, its tensors filled with values of the kind that was seen."""
    if isinstance(value, list):
        return [decoded(item, random) for item in value]
    if isinstance(value, dict):
        if "d" in value:
            return getattr(torch, value["d"])
        return _drawn(value["t"], random)
    return value


def decoded_result(value: Any) -> Any:
    """What the caller allocates for a result."""
    if isinstance(value, list):
        return [decoded_result(item) for item in value]
    return _allocated(*value["t"]) if isinstance(value, dict) else value


def _allocated(dtype: str, shape: list[int], strides: list[int] | None) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if strides is None:
        return torch.empty(shape, dtype=kind)
    return torch.empty_strided(shape, strides, dtype=kind)


def _drawn(given: list[Any], random: torch.Generator) -> torch.Tensor:
    dtype, shape, strides, kind, *facts = given
    tensor = _allocated(dtype, shape, strides)
    if tensor.numel():
        # Written through the storage: elements that share memory are written once, as they were.
        flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
        if kind == "v" and strides is not None:
            offsets = torch.arange(flat.numel()).as_strided(shape, strides, 0).flatten()
            flat.zero_()[offsets] = torch.tensor(facts[0], dtype=flat.dtype)
        else:
            flat.copy_(_values(kind, facts, flat, random))
    return tensor


def _values(kind: str, facts: list[Any], like: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    count = like.numel()
    match kind:
        case "c":
            return torch.full((count,), facts[0], dtype=torch.float64)
        case "v":
            return torch.tensor(facts[0])
        case "i":
            return torch.randint(facts[0], facts[1] + 1, (count,), generator=random)
        case "b":
            # As many as there were: the sizes of other arguments may depend on it.
            return torch.randperm(count, generator=random) < round(count * facts[0] / facts[1])
        case "m":
            chosen = torch.rand(count, generator=random) < facts[1]
            return torch.where(chosen, torch.tensor(facts[0], dtype=torch.float64), 0.0)
        case "u":
            return torch.rand(count, dtype=torch.float64, generator=random) * (facts[1] - facts[0]) + facts[0]
    if like.dtype.is_complex:
        return torch.randn(count, dtype=torch.complex128, generator=random) * facts[0]
    return torch.randn(count, dtype=torch.float64, generator=random) * facts[0]


def elements(values: dict[str, Any]) -> int:
    """Of the largest tensor of a call."""
    return max((t.numel() for v in values.values() for t in each_tensor(v)), default=0)
