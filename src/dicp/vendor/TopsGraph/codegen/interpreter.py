"""Runs the recording of a program on the CPU, each operator of the builder by its definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from dicp.errors import InvalidGraphError
from dicp.vendor.TopsGraph.codegen.definitions import DEFINITIONS
from dicp.vendor.TopsGraph.codegen.recording import Operand, Recording, constant_value

__all__ = ["interpret"]


def interpret(recording: Recording, types: Mapping[int, Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs. Every result must have the type that its operator's rule gave."""
    given = iter(inputs)
    values: dict[int, Any] = {}
    last = _last_uses(recording)
    for call in recording.calls:
        if call.name == "CreateInput":
            value: Any = next(given) if not call.arguments[1] else None
        elif call.name == "Const":
            value = constant_value(call)
        elif any(values[number] is None for number in _numbers(list(call.arguments))):
            value = None  # in the body of a function, which its users interpret by its name
        else:
            value = _definition(call.name)(*_resolved(list(call.arguments), values))
        if value is not None:
            _must_agree(call.number, call.name, value, types[call.number])
        values[call.number] = value
        for number in last.get(call.number, ()):
            del values[number]
    return [values[number] for number in recording.outputs]


def _definition(name: str) -> Callable[..., Any]:
    found = DEFINITIONS.get(name)
    if found is None:
        raise InvalidGraphError(f"the interpreter has no definition of {name}")
    return found


def _resolved(argument: Any, values: Mapping[int, Any]) -> Any:
    if isinstance(argument, Operand):
        return values[argument.number]
    return [_resolved(item, values) for item in argument] if isinstance(argument, list) else argument


def _last_uses(recording: Recording) -> dict[int, list[int]]:
    """After which call the results of which others are not needed any more."""
    last: dict[int, int] = {}
    for call in recording.calls:
        for number in _numbers(list(call.arguments)):
            last[number] = call.number
    kept = {*recording.outputs, *(number for outputs in recording.functions.values() for number in outputs)}
    found: dict[int, list[int]] = {}
    for number, user in last.items():
        if number not in kept:
            found.setdefault(user, []).append(number)
    return found


def _numbers(argument: Any) -> list[int]:
    if isinstance(argument, Operand):
        return [argument.number]
    if isinstance(argument, list):
        return [number for item in argument for number in _numbers(item)]
    return []


def _must_agree(number: int, name: str, value: Any, expected: Any) -> None:
    values, types = (item if isinstance(item, list) else [item] for item in (value, expected))
    for result, kind in zip(values, types, strict=True):
        if result.shape != kind.shape or result.dtype != kind.dtype:
            raise InvalidGraphError(
                f"op{number} = {name} gives {result.dtype} {list(result.shape)}, its rule {kind.dtype} {list(kind.shape)}"
            )
