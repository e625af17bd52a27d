"""What a call writes to: its in-place arguments, `out=`, and the running statistics that no schema mentions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from op_tools import running_statistics
from op_tools.engine.call import tensors_of

__all__ = ["may_write", "written", "written_arguments"]


@functools.lru_cache(maxsize=4096)
def may_write(func: Any, name: str) -> bool:
    """Whether a call may overwrite one of its inputs, by its schema or else by its name."""
    if isinstance(func, torch._ops.OpOverload):
        return bool(func._schema.is_mutable)
    last = name.rpartition(".")[2]
    return last == "__setitem__" or last.startswith("__i") or (last.endswith("_") and not last.endswith("__"))


@functools.lru_cache(maxsize=4096)
def written_arguments(func: Any, name: str) -> tuple[tuple[int, str], ...]:
    """Place and name of the arguments a call overwrites."""
    if isinstance(func, torch._ops.OpOverload):
        return _marked(func)
    if not may_write(func, name):
        return ()
    # A fused optimizer writes more than its first argument: the operator of the same name says which.
    packet = getattr(torch.ops.aten, name.rpartition(".")[2], None)
    found = _marked(getattr(packet, packet.overloads()[0])) if packet is not None else ()
    return found or ((0, "self"),)


def _marked(func: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written(
    func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, statistics: bool = True
) -> list[torch.Tensor]:
    """The tensors a call overwrites, in the order of its arguments, whether it returns them or not."""
    places = written_arguments(func, name)
    values = [args[place] if place < len(args) else kwargs.get(key) for place, key in places]
    if "out" in kwargs and "out" not in {key for _, key in places}:
        values.append(kwargs["out"])
    if statistics:
        values += running_statistics.written(func, name, args, kwargs)
    return tensors_of(values) if values else []
