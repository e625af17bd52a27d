"""A task: a function given by name, plain data in, plain data out. Errors are results too."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Result", "SpreadError", "WorkerError", "answer_of", "failure", "named"]

Result = dict[str, Any]
Function = Callable[[Mapping[str, Any]], Result]


class SpreadError(RuntimeError):
    """The work cannot be spread as asked. The message says what is missing and what to do."""


class WorkerError(SpreadError):
    """No worker could be started: the reason is that worker's last words."""


def named(function: str) -> Function:
    """The function called "module:name". Raises SpreadError."""
    module, _, name = function.partition(":")
    try:
        found: Function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpreadError(f"there is no function {function!r} to run: {error}") from error
    return found


def failure(reason: str) -> Result:
    """What takes the place of a result."""
    return {"error": reason}


def answer_of(call: Function, payload: Mapping[str, Any]) -> Result:
    """What the function makes of a payload; what it raises becomes a failure."""
    try:
        return call(payload)
    except Exception as error:  # the next payload may be fine
        return failure(f"{type(error).__name__}: {error}")
