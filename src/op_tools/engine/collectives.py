"""Collectives of torch.distributed as operators.

They are plain functions, so no mode sees them: while a tool is on, the names in torch.distributed lead through the
engine. What DDP issues from C++ is seen at ATen level, as c10d operators.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from op_tools.engine.modes import UNKNOWN, ApiMode

if TYPE_CHECKING:
    from op_tools.engine.core import Engine

NAMES = (
    "all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_into_tensor",
    "all_gather_single", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single",
    "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv", "batch_isend_irecv",
)  # fmt: skip


# How many compiled callables run. The compiler knows the collectives by identity, so it is shown the originals.
_compiled_runs = 0
_lock = threading.Lock()


def _new_lock() -> None:
    # Another thread of the parent may have held it.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)
_replaced: list[tuple[Any, str, Any, Any]] = []


def _put(routed: bool) -> None:
    for module, name, ours, original in _replaced:
        expected, wanted = (original, ours) if routed else (ours, original)
        if getattr(module, name, None) is expected:
            setattr(module, name, wanted)


def leave_alone(yes: bool) -> None:
    """Take the collectives out of the engine's way while a compiled callable runs; nests."""
    global _compiled_runs
    with _lock:
        before = _compiled_runs
        _compiled_runs = max(0, before + (1 if yes else -1))
        if yes and before == 0:
            _put(routed=False)
        elif not yes and before == 1:
            _put(routed=True)


def _routed(engine: Engine, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(mode, ApiMode) for mode in engine.modes_here()):
            return original(*args, **kwargs)
        subscription = engine.api_subscriptions.get(original, UNKNOWN)
        if subscription is UNKNOWN:
            subscription = engine.subscribe_api(original, name)
        if subscription is None:
            return original(*args, **kwargs)
        return engine.run_api(subscription, original, args, kwargs)

    return collective


def _followed(engine: Engine, original: Callable[..., Any]) -> Callable[..., Any]:
    """What a tool looks at depends on whether there are other ranks: ask again when they come."""

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if engine.tools:
            engine.changed()
        return result

    return init_process_group


def install(engine: Engine) -> Callable[[], None]:
    """Lead the collectives through the engine; the result undoes it."""
    if not dist.is_available():
        return lambda: None
    from torch.distributed import distributed_c10d

    _replaced.clear()
    for short in (*NAMES, "init_process_group"):
        original = getattr(distributed_c10d, short, None)
        if original is None:
            continue
        if short == "init_process_group":
            ours = _followed(engine, original)
        else:
            ours = _routed(engine, f"torch.distributed.{short}", original)
        _replaced.extend((module, short, ours, original) for module in (distributed_c10d, dist))
    _put(routed=True)

    def undo() -> None:
        _put(routed=False)
        _replaced.clear()

    return undo
