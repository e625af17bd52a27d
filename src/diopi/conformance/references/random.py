"""References of functions that draw random numbers: they name a function of torch whose distribution must come out.

    reference = "draw('bernoulli_', inout, 0.3)"
    reference = "draw('native_dropout', input, p, True) if train else (input, torch.ones_like(input, dtype=torch.bool))"

`draw` gives one `Drawn` for each result of that function (a tuple if there are several, as torch's), in the order of what the
C function writes. The verdict is `op_tools.verdict.judge_random` of the named function and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Drawn:
    """One result of a random call: what torch drew (for its shape and dtype) and how to judge another draw."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int
    value: Tensor
    varies: bool
    """Whether another seed gives other numbers: not if p is 0 or there are few elements."""


def draw(name: str, *args: Any, **kwargs: Any) -> Any:
    """Stands for a call of torch's random function `name`: `uniform_`, `randperm`, `native_dropout` ..."""
    function = _found(name)
    first, second = (_results(function, name, args, kwargs, seed) for seed in (1, 2))
    drawn = tuple(
        Drawn(name, args, kwargs, index, value, not torch.equal(value, other))
        for index, (value, other) in enumerate(zip(first, second, strict=True))
    )
    return drawn if len(drawn) > 1 else drawn[0]


def _found(name: str) -> Callable[..., Any]:
    for holder in (Tensor if name.endswith("_") else torch, torch.nn.functional, torch.ops.aten):
        if hasattr(holder, name):
            return getattr(holder, name)
    raise LookupError(f"draw({name!r}): torch has no function of that name")


def _results(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int
) -> list[Tensor]:
    if name.endswith("_"):
        args = (args[0].clone(), *args[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        result = function(*args, **kwargs)
    return list(result) if isinstance(result, (tuple, list)) else [result]
