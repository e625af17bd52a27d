"""Errors of capturing in words that say what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

# Private: the kinds of errors that capturing raises have no public names.
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.utils._pytree import keystr, tree_flatten_with_path

import dlinfer.errors
from dlinfer.errors import DlinferArgumentError, GraphError
from dlinfer.graph.backends import NO_GRAPH
from dlinfer.settings import GRAPH_BACKEND

CAPTURE_ERRORS = (TorchDynamoException, FailOnRecompileLimitHit)
WITHOUT = f"To run without a graph set {GRAPH_BACKEND.name}={NO_GRAPH} (LMDeploy: PytorchEngineConfig(eager_mode=True))."


def name_of(target: Callable[..., Any]) -> str:
    """What a reader calls a function or module."""
    return getattr(target, "__qualname__", type(target).__name__)


def explained(
    error: Exception, target: Callable[..., Any], backend: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception:
    """What to raise instead of torch's error: where in the source it happened, why, and how to go on."""
    for cause in _causes(error):
        if isinstance(cause, DlinferArgumentError | GraphError):
            return cause
    failed = getattr(error, "inner_exception", None)
    if failed is not None:
        text = f"{type(failed).__name__}: {failed}"
        return GraphError(f"backend {backend!r} failed with the graph of {name_of(target)}: {text} {WITHOUT}")
    stack = getattr(error, "real_stack", None) or []
    if any(frame.filename == dlinfer.errors.__file__ for frame in stack):
        # Arguments were refused, which capturing cannot follow; the program itself says which.
        try:
            with torch.no_grad():
                target(*args, **kwargs)
        except DlinferArgumentError as refused:
            return refused
    location = ""
    if stack:
        frame = stack[-1]
        location = f" at {frame.filename}:{frame.lineno} in {frame.name} (`{frame.line}`)"
    return GraphError(f"{name_of(target)} cannot be one graph{location}: {_first_lines(error)} {WITHOUT}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        inner = getattr(seen, "inner_exception", None)
        seen = inner if inner is not None else (seen.__cause__ or seen.__context__)


def _first_lines(error: BaseException) -> str:
    """torch's reason, without its pages of advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines[:3] if not line.startswith(("Hint:", "Developer debug", "from user code"))]
    return " ".join(kept)


def kinds_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    """Each argument in a few words, by its name; parts of lists and dicts one by one."""
    parts = (("args", list(args)), ("kwargs", kwargs))
    return {
        name + keystr(path): _kind(value)
        for name, part in parts
        for path, value in tree_flatten_with_path(part)[0]
    }


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        inference = ", made in inference mode" if value.is_inference() else ""
        return f"{value.dtype} {list(value.shape)} on {value.device}{inference}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return type(value).__name__


def changes(before: dict[str, str], now: dict[str, str]) -> str:
    """What is different between two calls."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if not names:
        return "modes of torch (inference mode, autocast) or values inside of arguments differ"
    shown = [f"{name} was {before.get(name, 'not given')}, is {now.get(name, 'not given')}" for name in names]
    return "; ".join(shown[:6]) + (f"; and {len(shown) - 6} more" if len(shown) > 6 else "")
