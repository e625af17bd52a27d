"""Functions around torch functions: the same call, with the device arguments translated.

The wrappers are plain Python functions without hidden state, because the compiler inlines them: a graph
then shows the original operator with the real device, and stays whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from _ditorch.mapping.target import Target

__all__ = ["disguise", "translate_all", "translate_first", "translate_keyword", "translate_type"]

_Function = Callable[..., Any]


def disguise(wrapper: _Function, original: _Function, module: str, qualname: str) -> _Function:
    """Give a wrapper the name, place and documentation of what it wraps: it pickles and prints alike."""
    functools.update_wrapper(wrapper, original)
    wrapper.__module__ = module
    wrapper.__qualname__ = qualname
    return wrapper


def translate_keyword(function: _Function, target: Target, keyword: str = "device") -> _Function:
    """For functions that take a device by keyword only, as all factories do."""
    translate = target.translate

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if keyword in kwargs:
            kwargs[keyword] = translate(kwargs[keyword])
        return function(*args, **kwargs)

    return wrapper


def translate_first(method: _Function, target: Target, keyword: str = "device") -> _Function:
    """For methods that take a device as the first argument after self, or by keyword."""
    translate = target.translate

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            first = translate(args[0])
            if first is not args[0]:
                args = (first, *args[1:])
        if keyword in kwargs:
            kwargs[keyword] = translate(kwargs[keyword])
        return method(self, *args, **kwargs)

    return wrapper


def translate_all(function: _Function, target: Target) -> _Function:
    """For functions whose arguments are devices, indices or unrelated things that are neither.

    An integer stays as it is: here it may as well be a seed or a size.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = tuple(value if type(value) is int else target.translate(value) for value in args)
        for name, value in kwargs.items():
            if type(value) is not int:
                kwargs[name] = target.translate(value)
        return function(*args, **kwargs)

    return wrapper


def translate_type(function: _Function, target: Target, keyword: str = "device_type") -> _Function:
    """For functions whose first argument, or a keyword, names a device type."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if args:
            args = (target.translate_type(args[0]), *args[1:])
        if keyword in kwargs:
            kwargs[keyword] = target.translate_type(kwargs[keyword])
        return function(*args, **kwargs)

    return wrapper
