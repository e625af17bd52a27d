"""Starts LMDeploy's server so that it serves, or ends with the reason.

The server and its engine are two processes. LMDeploy 0.18 hands the engine's port over through a manager process, and ends
that one as soon as the server has read the port. The engine may still be waiting for the manager's answer then, and dies
(EOFError). Here the manager lives as long as the server. An engine that cannot be made leaves threads that keep its process
alive, for which the server waits for ever; here the process ends.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from types import SimpleNamespace
from typing import Any

from dlinfer.framework.lmdeploy.requests import refuse_empty_prompts

__all__ = ["end_with_engine", "engine_process", "keep_manager", "serve"]

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


def end_with_engine() -> None:
    """Let LMDeploy's engine processes of this process end when their engine cannot be made."""
    from lmdeploy.pytorch.engine.mp_engine.zmq_engine import ZMQMPEngine

    ZMQMPEngine._mp_proc = staticmethod(engine_process)


def engine_process(*args: Any, **kwargs: Any) -> None:
    """What runs in an engine's process. That one imports this module, and has LMDeploy's function as it was."""
    from lmdeploy.pytorch.engine.mp_engine.zmq_engine import ZMQMPEngine

    try:
        ZMQMPEngine._mp_proc(*args, **kwargs)
    except (Exception, SystemExit):  # LMDeploy's checks leave with the latter
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def serve(arguments: list[str]) -> None:
    """`lmdeploy serve api_server` with these arguments."""
    from lmdeploy.cli.entrypoint import run
    from lmdeploy.pytorch.engine.mp_engine.zmq_rpc import RPCServerDeadError

    keep_manager()
    end_with_engine()
    refuse_empty_prompts()
    sys.argv = ["lmdeploy", "serve", "api_server", *arguments]
    try:
        run()
    except RPCServerDeadError:
        sys.exit(
            "dlinfer serve: the engine could not be started; the last lines of its process above say why."
        )
