"""Starts LMDeploy's server so that it serves, or ends with the reason; and ends it with all its processes.

The server and its engine are two processes. LMDeploy 0.18 hands the engine's port over through a manager process, and ends
that one as soon as the server has read the port. The engine may still be waiting for the manager's answer then, and dies
(EOFError). Here the manager lives as long as the server. An engine that cannot be made leaves threads that keep its process
alive, for which the server waits for ever; here the process ends.

On SIGTERM uvicorn shuts down and then raises the signal again, whose default action ends the process without running
atexit: Python would not end the processes that it started. Here SIGTERM leaves through SystemExit, whenever it comes, and
the manager and the engine watch the server's process besides, so that not even SIGKILL leaves one behind.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from multiprocessing.managers import SyncManager
from types import SimpleNamespace
from typing import Any

from dlinfer.framework.lmdeploy.generation import refuse_empty_prompts

#: Seconds that answers under way have once the server was asked to end; LMDeploy's own waits for the last of them.
ANSWER_SECONDS = 5
#: Seconds for the rest of the end; whatever hangs (a thread of a library, the engine) is left behind then.
END_SECONDS = 10

_MANAGERS: list[Any] = []


class _Lasting:
    """A manager for `with` that is not ended at its end, but with this process."""

    def __init__(self) -> None:
        self._manager = SyncManager(ctx=multiprocessing.get_context())
        self._manager.start(initializer=end_with_parent)
        _MANAGERS.append(self._manager)

    def __enter__(self) -> Any:
        return self._manager

    def __exit__(self, *error: object) -> None: ...


def end_with_parent() -> None:
    """Let this process end when the one that started it has ended, however that was."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="end_with_parent", daemon=True).start()


def keep_manager() -> None:
    """Let LMDeploy's engine processes of this process start without a race."""
    from lmdeploy.pytorch.engine.mp_engine import zmq_engine

    # All that the module uses of multiprocessing when it starts an engine.
    zmq_engine.mp = SimpleNamespace(Manager=_Lasting, get_context=multiprocessing.get_context)


def end_with_engine() -> None:
    """Let LMDeploy's engine processes of this process end when their engine cannot be made, or with this process."""
    from lmdeploy.pytorch.engine.mp_engine.zmq_engine import ZMQMPEngine

    ZMQMPEngine._mp_proc = staticmethod(engine_process)


def engine_process(*args: Any, **kwargs: Any) -> None:
    """What runs in an engine's process. That one imports this module, and has LMDeploy's function as it was."""
    from lmdeploy.pytorch.engine.mp_engine.zmq_engine import ZMQMPEngine

    end_with_parent()
    try:
        ZMQMPEngine._mp_proc(*args, **kwargs)
    except (Exception, SystemExit):  # LMDeploy's checks leave with the latter
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def end_in_order() -> None:
    """Let SIGTERM end this process as `sys.exit` does, and the server stop waiting for answers after a while."""
    import uvicorn
    from lmdeploy.serve.openai import api_server

    signal.signal(signal.SIGTERM, _leave)
    # All that the module uses of uvicorn.
    run = functools.partial(uvicorn.run, timeout_graceful_shutdown=ANSWER_SECONDS)
    api_server.uvicorn = SimpleNamespace(run=run)


def _leave(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _end_at_last() -> None:
    """Python waits for threads of libraries when it ends; some of LMDeploy's wait for the engine."""
    timer = threading.Timer(END_SECONDS, os._exit, [1])
    timer.daemon = True
    timer.start()


def serve(arguments: list[str]) -> None:
    """`lmdeploy serve api_server` with these arguments."""
    from lmdeploy.cli.entrypoint import run
    from lmdeploy.pytorch.engine.mp_engine.zmq_rpc import RPCServerDeadError

    keep_manager()
    end_with_engine()
    end_in_order()
    refuse_empty_prompts()
    sys.argv = ["lmdeploy", "serve", "api_server", *arguments]
    try:
        run()
    except RPCServerDeadError:
        sys.exit(
            "dlinfer serve: the engine could not be started; the last lines of its process above say why."
        )
    finally:
        _end_at_last()
