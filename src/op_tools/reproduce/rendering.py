"""A captured call as source text: `torch.nn.functional.linear(x[0], x[1], bias=x[2])`."""

from __future__ import annotations

import enum
import keyword
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from op_tools.captured.move import to_device
from op_tools.names import name_of
from op_tools.reference.base import upcast
from op_tools.reference.call_plan import plan_for
from op_tools.trees import map_leaves

__all__ = ["NotWritable", "call_source", "public_name", "reference_source"]

_ANY_DEVICE = torch.device("meta", 0)
_NAMED = (torch.dtype, torch.memory_format, torch.layout, torch.qscheme)
_LONGEST_LINE = 110


class NotWritable(ValueError):
    """A value that has no form as source text."""


def public_name(name: str) -> str:
    """How a program that has imported torch calls the function."""
    name = name.replace("::", ".")
    return f"torch.ops.{name}" if name.startswith("aten.") else name


def call_source(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensor: Callable[[torch.Tensor], str],
    captured_on: str,
) -> str:
    """The call as it was captured; devices that named an accelerator are `device`."""

    def leaf(value: Any) -> str | None:
        if isinstance(value, torch.device | str):
            moved = to_device(value, _ANY_DEVICE, captured_on=captured_on)
            return "device" if moved is _ANY_DEVICE else None
        return None

    # Memory that a transfer may overlap with changes no value, and the CPU has no use for it.
    kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    return _call(public_name(name), args, kwargs, tensor, leaf)


def reference_source(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensor: Callable[[torch.Tensor], str],
) -> str:
    """The same call in float64 on the CPU."""
    plan = plan_for(func, "cpu").upcast
    names: dict[int, str] = {}
    kept: list[torch.Tensor] = []

    def stand_in(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return upcast(value)
        kept.append(torch.empty(0, dtype=upcast(value.dtype), device="meta"))
        names[id(kept[-1])] = _tensor(value, tensor)
        return kept[-1]

    given, named = plan.on_reference(map_leaves(tuple(args), stand_in), map_leaves(dict(kwargs), stand_in))
    named = dict(named)
    if plan.is_factory and named.get("dtype") is None and not kept:
        named["dtype"] = torch.float64

    def name_of_input(value: torch.Tensor) -> str:
        if id(value) not in names:
            raise NotWritable("the reference needs a tensor that was no argument")
        return names[id(value)]

    return _call(public_name(name_of(plan.func)), given, named, name_of_input, lambda value: None)


def _call(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensor: Callable[[torch.Tensor], str],
    leaf: Callable[[Any], str | None],
) -> str:
    if not all(key.isidentifier() and not keyword.iskeyword(key) for key in kwargs):
        raise NotWritable("a keyword argument whose name is no name")
    parts = [_written(value, tensor, leaf) for value in args]
    parts += [f"{key}={_written(value, tensor, leaf)}" for key, value in kwargs.items()]
    line = f"{name}({', '.join(parts)})"
    if len(line) <= _LONGEST_LINE:
        return line
    inner = "".join(f"        {part},\n" for part in parts)
    return f"{name}(\n{inner}    )"


def _written(value: Any, tensor: Callable[[torch.Tensor], str], leaf: Callable[[Any], str | None]) -> str:
    """Source text of any value that a capture can hold."""
    written = leaf(value)
    if written is not None:
        return written
    if isinstance(value, torch.Tensor):
        return _tensor(value, tensor)

    def inner(item: Any) -> str:
        return _written(item, tensor, leaf)

    if isinstance(value, torch.Size):
        return f"torch.Size({list(value)})"
    if isinstance(value, list | tuple):
        items = ", ".join(map(inner, value))
        if isinstance(value, list):
            return f"[{items}]"
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{inner(key)}: {inner(item)}" for key, item in value.items()) + "}"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}([{', '.join(map(inner, value))}])"
    if isinstance(value, slice):
        return f"slice({inner(value.start)}, {inner(value.stop)}, {inner(value.step)})"
    return _scalar(value)


def _tensor(value: torch.Tensor, tensor: Callable[[torch.Tensor], str]) -> str:
    if value.layout is torch.strided:
        return tensor(value)
    if value.layout is torch.sparse_coo:
        parts = f"{tensor(value._indices())}, {tensor(value._values())}"
        made = f"torch.sparse_coo_tensor({parts}, {tuple(value.shape)})"
        return f"{made}.coalesce()" if value.is_coalesced() else made
    raise NotWritable(f"a tensor of layout {value.layout}")


def _scalar(value: Any) -> str:
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if value is Ellipsis:
        return "..."
    if kind is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if kind is complex:
        return f"complex({_scalar(value.real)}, {_scalar(value.imag)})"
    if isinstance(value, _NAMED):
        return str(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if kind is range:
        return repr(value)
    if isinstance(value, enum.Enum) and kind.__module__.partition(".")[0] == "torch":
        return f"{kind.__module__}.{kind.__qualname__}.{value.name}"
    raise NotWritable(f"a value of type {kind.__module__}.{kind.__qualname__}")
