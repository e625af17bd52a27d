"""What the functions of this package share: the operators, and errors that name the argument whatever a caller passes.

Values go to torch as they come: looking at the type of each one would cost more than many kernels. Only where a call
failed are they looked at, beside the annotations of the function, and the first that does not fit is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from dlinfer.errors import DlinferArgumentError, wrong
from dlinfer.interface import OPERATORS
from dlinfer.interface.registry import OVERLOADS

__all__ = ["OVERLOADS", "TYPE_ERROR", "bits_of", "derived", "explained"]

# torch's own words, the same in all versions that are supported.
TYPE_ERROR = re.compile(
    r"Expected a value of type '(.+?)' for argument '(.+?)' but instead found type '(.+?)'"
)
_WORDS = {
    Tensor: "a tensor",
    int: "a whole number of 64 bits",
    float: "a number",
    bool: "True or False",
    str: "text",
}
_P = ParamSpec("_P")
_R = TypeVar("_R")


def bits_of(quant_bits: Any) -> int:
    """`quant_bits` as a number: None is 0, and frameworks have enumerations of policies."""
    if not isinstance(quant_bits, int | None):
        raise wrong("quant_bits", f"is {quant_bits!r}, expected 0, 8 or 4 bits an element")
    # Not operator.index: the compiler runs in circles there when it is given an enumeration.
    return int(quant_bits or 0)


def explained(
    name: str, body: Callable[..., Any] | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A call form of the operator `name`, whose errors about types name the argument; `body` runs in its place."""

    def decorated(function: Callable[_P, _R]) -> Callable[_P, _R]:
        run: Callable[_P, _R] = body or function

        @wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if torch.compiler.is_compiling():
                return run(*args, **kwargs)
            try:
                return run(*args, **kwargs)
            except DlinferArgumentError as error:
                error.operator = error.operator or name
                raise
            except Exception as error:
                problem = _problem(function, args, kwargs) or _said_by_torch(error)
                if problem is None:
                    raise
                raise DlinferArgumentError(name, *problem) from error

        return called

    return decorated


def derived(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A call form that equals the schema: its body is the call of the operator of its name.

    The signature is written out for its readers. That it says what the schema says is looked at here.
    """
    name = function.__name__
    declared = OPERATORS[name].parsed.arguments
    wanted = [(a.name, a.default_value if a.has_default_value() else Parameter.empty) for a in declared]
    found = [(p.name, p.default) for p in signature(function).parameters.values()]
    if found != wanted:
        raise TypeError(
            f"{name}{signature(function)} is not derived from its schema, {OPERATORS[name].schema}"
        )
    return explained(name, OVERLOADS[name])(function)


def _said_by_torch(error: Exception) -> tuple[str, str] | None:
    """What torch found wrong with an argument of the operator."""
    found = TYPE_ERROR.search(str(error))
    return None if found is None else (found[2], f"is a {found[3]}, expected {found[1]}")


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(function)


def _problem(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, str] | None:
    """The first argument that is not what its annotation says, and what is wrong with it."""
    try:
        bound = signature(function).bind(*args, **kwargs)
    except TypeError:  # Python names what is missing or too much
        return None
    hints = _hints(function)
    # Arguments of any number are looked at by the function that takes them.
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    given = {n: value for n, value in bound.arguments.items() if kinds[n] is not Parameter.VAR_POSITIONAL}
    for argument, value in given.items():
        if not _fits(value, hints[argument]):
            return argument, f"is {_shown(value)}, expected {_expected(hints[argument])}"
    tensors = [(a, t) for a, value in given.items() for t in _tensors(value)]
    for argument, tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_nested:
            return argument, f"is {tensor.layout}, expected a plain tensor (strided)"
        if tensor.is_meta and not tensors[0][1].is_meta:
            return (
                argument,
                f"is on meta, but {tensors[0][0]} is on {tensors[0][1].device}: expected all of them, or none",
            )
    return None


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, (list, tuple)) else (value,)
    return [one for one in values if isinstance(one, Tensor)]


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation of a call form says, or can stand for it."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        pair = isinstance(value, (tuple, list)) and len(value) == len(parts)
        return pair and all(_fits(one, part) for one, part in zip(value, parts, strict=True))
    if origin is Sequence:
        return isinstance(value, (tuple, list)) and all(_fits(one, parts[0]) for one in value)
    if hint in (int, float) and not isinstance(value, Tensor):
        # Numbers of NumPy and of torch's compiler are as good; only Python's own can be beyond what torch takes.
        limit = 2**63 if hint is int else 2**1023
        small = not isinstance(value, int) or -limit <= value < limit
        return small and (hasattr(value, "__index__") or (hint is float and hasattr(value, "__float__")))
    return isinstance(value, hint)


def _shown(value: Any) -> str:
    """A value in few words."""
    if value is None or isinstance(value, (int, float, str)):
        return repr(value)[:60]
    return f"a {type(value).__name__}" + (
        f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
    )


def _expected(hint: Any) -> str:
    """An annotation in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_expected(part) for part in parts))
    if origin is Sequence:
        return f"a list of {_expected(parts[0])}"
    if origin is tuple:
        return f"({', '.join(_expected(part) for part in parts)})"
    return _WORDS.get(hint) or ("None" if hint is type(None) else f"a {hint.__module__}.{hint.__qualname__}")
