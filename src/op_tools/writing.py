"""What a call writes to: its in-place arguments, `out=`, and the running statistics that no schema mentions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from op_tools.categories import base_name, bound_arguments, names_in
from op_tools.trees import tensors_of

__all__ = ["may_write", "written", "written_arguments", "written_statistics"]


@functools.lru_cache(maxsize=4096)
def may_write(func: Any, name: str) -> bool:
    """Whether a call may overwrite one of its inputs, by its schema or else by its name."""
    if isinstance(func, torch._ops.OpOverload):
        return bool(func._schema.is_mutable)
    last = name.rpartition(".")[2]
    return last == "__setitem__" or last.startswith("__i") or (last.endswith("_") and not last.endswith("__"))


@functools.lru_cache(maxsize=4096)
def written_arguments(func: Any, name: str) -> tuple[tuple[int, str], ...]:
    """Index and name of the arguments a call overwrites."""
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
        (index, argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written(
    func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, statistics: bool = True
) -> list[torch.Tensor]:
    """The tensors a call overwrites, in the order of its arguments, whether it returns them or not."""
    indices = written_arguments(func, name)
    values = [args[index] if index < len(args) else kwargs.get(key) for index, key in indices]
    if "out" in kwargs and "out" not in {key for _, key in indices}:
        values.append(kwargs["out"])
    if statistics:
        values += written_statistics(func, name, args, kwargs)
    return tensors_of(values) if values else []


# Running statistics of normalisations: written by operators that neither schema nor version counter gives away.
_STATISTICS = ("running_mean", "running_var")
_FLAGS = ("training", "use_input_stats", "train")
_NORMALISATIONS = names_in("batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm")


def written_statistics(
    func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """The statistics this call will write to."""
    if not _keeps_statistics(name):
        return []
    bound = bound_arguments(func, args, kwargs)
    if not any(bound.get(flag) for flag in _FLAGS):
        return []
    return [value for key in _STATISTICS if isinstance(value := bound.get(key), torch.Tensor)]


@functools.lru_cache(maxsize=8192)
def _keeps_statistics(name: str) -> bool:
    return base_name(name) in _NORMALISATIONS
