"""Functions of tensors alone, made from calls: what `torch.compile` is given.

A call has tensors, sizes and settings among its arguments. A model gets tensors from outside and holds its settings, so the
settings are written into the function; sizes are what a model computes, and stay parameters. Every function has code of its
own: Dynamo keeps what it compiled by code object, and calls of different operators would push each other out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["CallArguments", "TensorFunction", "function_of"]


@dataclass(frozen=True)
class CallArguments:
    """What an operator is called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorFunction:
    """Calls as one function: `function(*leaves)` gives a tuple with the result of each call."""

    function: Callable[..., tuple[Any, ...]]
    leaves: list[Any]
    """Tensors and sizes, in the order of the parameters."""
    source: str


def function_of(calls: Sequence[tuple[Callable[..., Any], CallArguments]]) -> TensorFunction:
    """One function that makes all the calls; a tensor that is given twice is one parameter."""
    writer = _Writer()
    lines = [
        f"    r{number} = {writer.constant(called)}({writer.arguments(given)})"
        for number, (called, given) in enumerate(calls)
    ]
    results = "".join(f"r{number}, " for number in range(len(calls)))
    parameters = ", ".join(f"x{number}" for number in range(len(writer.leaves)))
    source = "\n".join([f"def compiled_calls({parameters}):", *lines, f"    return ({results.rstrip()})"])
    namespace: dict[str, Any] = {"inf": float("inf"), "nan": float("nan"), "torch": torch, **writer.constants}
    exec(compile(source, "<calls>", "exec"), namespace)
    return TensorFunction(namespace["compiled_calls"], writer.leaves, source)


class _Writer:
    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._parameter_of: dict[int, str] = {}

    def arguments(self, given: CallArguments) -> str:
        texts = [self.value(value) for value in given.args]
        texts += [f"{name}={self.value(value)}" for name, value in given.kwargs.items()]
        return ", ".join(texts)

    def value(self, value: Any) -> str:
        if isinstance(value, (torch.Tensor, torch.Size)):
            return self._parameter(value)
        if type(value) in (list, tuple):
            inner = "".join(f"{self.value(item)}, " for item in value).rstrip()
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        if value is None or type(value) in (bool, int, float, str):
            return repr(value)
        if isinstance(value, torch.dtype):
            return str(value)
        return self.constant(value)

    def _parameter(self, value: Any) -> str:
        # Two sizes that are equal are still two parameters; a tensor given twice is the same memory.
        key = id(value)
        if isinstance(value, torch.Size) or key not in self._parameter_of:
            self._parameter_of[key] = f"x{len(self.leaves)}"
            self.leaves.append(value)
        return self._parameter_of[key]

    def constant(self, value: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name
