"""Running statistics of normalisations: written to by operators that neither schema nor version counter gives away."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

_WRITTEN = ("running_mean", "running_var")
_SWITCHES = ("training", "use_input_stats", "train")
_OPERATORS = frozenset(
    ("batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
)
# torch.batch_norm and torch.instance_norm are builtins without a signature; their order is that of the operator.
_BUILTIN_ORDER = ("input", "weight", "bias", "running_mean", "running_var", "training")


def written(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The statistics this call will write to."""
    names = _parameters(func, name)
    if not names:
        return []
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    if not any(bound.get(switch, switch == "use_input_stats") for switch in _SWITCHES if switch in names):
        return []
    return [value for key in _WRITTEN if isinstance(value := bound.get(key), torch.Tensor)]


@lru_cache(maxsize=8192)
def _parameters(func: Any, name: str) -> tuple[str, ...]:
    parts = name.split(".")
    operator = parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]
    if operator not in _OPERATORS:
        return ()
    if isinstance(func, torch._ops.OpOverload):
        return tuple(argument.name for argument in func._schema.arguments)
    try:
        return tuple(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return _BUILTIN_ORDER
