"""Starts LMDeploy's server so that its two processes find each other, also on a busy machine.

LMDeploy 0.18 hands the engine's port over through a manager process, and ends that process as soon as the server has read
the port. The engine may still be waiting for the manager's answer then, and dies (EOFError). Here the manager lives as long
as the server.
"""

from __future__ import annotations

import multiprocessing
import sys
from types import SimpleNamespace
from typing import Any

from dlinfer.framework.lmdeploy.requests import refuse_empty_prompts

__all__ = ["keep_manager", "serve"]

_MANAGERS: list[Any] = []


class _Lasting:
    """A manager for `with` that is not ended at its end. Python ends its process with this one."""

    def __init__(self) -> None:
        self._manager = multiprocessing.Manager()
        _MANAGERS.append(self._manager)

    def __enter__(self) -> Any:
        return self._manager

    def __exit__(self, *error: object) -> None: ...


def keep_manager() -> None:
    """Let LMDeploy's engine processes of this process start without a race."""
    from lmdeploy.pytorch.engine.mp_engine import zmq_engine

    # All that the module uses of multiprocessing when it starts an engine.
    zmq_engine.mp = SimpleNamespace(Manager=_Lasting, get_context=multiprocessing.get_context)


def serve(arguments: list[str]) -> None:
    """`lmdeploy serve api_server` with these arguments."""
    from lmdeploy.cli.entrypoint import run

    keep_manager()
    refuse_empty_prompts()
    sys.argv = ["lmdeploy", "serve", "api_server", *arguments]
    run()
