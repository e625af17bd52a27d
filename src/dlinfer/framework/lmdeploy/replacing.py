"""How a function of LMDeploy is changed from outside."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def around(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Replaces a function of a class or module by one that gets the original first, then the arguments of the call."""
    held = inspect.getattr_static(owner, name)
    original = getattr(held, "__func__", held)

    def replace(new: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return new(original, *args, **kwargs)

        # A static method stays one, and so does a class method.
        setattr(owner, name, type(held)(call) if isinstance(held, (staticmethod, classmethod)) else call)

    return replace
