"""The other end of `dicore.workers`: the process of a worker, and the server that forks workers with modules preloaded.

    python -m dicore.workers worker FD
    python -m dicore.workers forkserver FD MODULE...

A worker is told what it is for (`Orders`), calls its entry point, and then answers tasks until its parent closes the
connection. Nothing of this needs `multiprocessing` to import the parent's `__main__`, so a script without a guard is not
run again, and neither the parent's `sys.argv` nor its environment is touched.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Orders", "Retire", "Service", "die_with_parent", "one_line"]

_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Orders:
    """What a new worker is told first; `setup` is pickled apart, because reading it may import anything."""

    entry: str
    group: str
    log: str
    setup: bytes
    signal_at_parents_death: bool


@dataclass(frozen=True)
class Service:
    """What an entry point returns: this worker is ready.

    `run` makes the answer of a task. If it is a generator function, what it yields is sent at once as progress, and what it
    returns is the answer. `close` is called when there is no more to do.
    """

    run: Callable[[Any], Any]
    facts: Any = None
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Retire:
    """An answer after which the worker is of no further use, such as one whose device context is dead."""

    value: Any


def one_line(error: BaseException) -> str:
    """Type and text of an exception, without the C++ stack that torch may add."""
    text = " ".join(str(error).split("\nException raised from")[0].split())
    return f"{type(error).__name__}: {text[:300]}"


def die_with_parent() -> None:
    """Ask the kernel to end this process with the thread that started it. Linux only; elsewhere nothing happens."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def load(entry: str) -> Callable[..., Any]:
    """The function called "module:name". Raises ImportError."""
    module, _, name = entry.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except AttributeError:
        raise ImportError(f"module {module} has no function {name!r}") from None
    return found


# --- the worker -------------------------------------------------------------------------------------------------


def serve(connection: Connection) -> None:
    """The whole life of a worker. Never returns: a vendor's library may not survive its own destructors."""
    orders: Orders = connection.recv()
    if orders.signal_at_parents_death:
        die_with_parent()
    else:
        _watch_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    log = _redirect_output(orders.log)
    try:
        service: Service = load(orders.entry)(orders.group, pickle.loads(orders.setup))
        _send(connection, "ready", service.facts)
    except BaseException as error:
        with suppress(OSError):
            connection.send(("refused", (one_line(error), traceback.format_exc())))
        os._exit(1)
    code = 0
    try:
        _answer_all(connection, service, log)
        service.close()
    except OSError:  # the parent is gone
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _answer_all(connection: Connection, service: Service, log: int) -> None:
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        os.ftruncate(log, 0)  # what is there after a crash was printed by the task that crashed
        try:
            answer = service.run(task)
            if isinstance(answer, Generator):
                answer = _stream(connection, answer, log)
        except Exception as error:
            connection.send(("raised", (one_line(error), traceback.format_exc())))
            continue
        retire = isinstance(answer, Retire)
        _send(connection, "last" if retire else "done", answer.value if retire else answer)
        if retire:
            return


def _stream(connection: Connection, messages: Generator[Any, None, Any], log: int) -> Any:
    while True:
        try:
            message = next(messages)
        except StopIteration as end:
            return end.value
        _send(connection, "progress", message)
        os.ftruncate(log, 0)


def _send(connection: Connection, kind: str, value: Any) -> None:
    """An answer that cannot be sent is an error of the task, not of the worker."""
    try:
        data = pickle.dumps((kind, value), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        data = pickle.dumps(("raised", (f"its result cannot be sent: {one_line(error)}", "")))
    connection.send_bytes(data)


def _redirect_output(log: str) -> int:
    """Whatever libraries print would tear the parent's output; a crash leaves its traceback here."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable(file=2)
    return descriptor


def _watch_parent() -> None:
    """For a worker that a short-lived thread started, which the kernel would take for its parent."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=look, name="dicore: does the parent live", daemon=True).start()


# --- the server that forks workers ------------------------------------------------------------------------------


def serve_forks(control: socket.socket, modules: list[str]) -> None:
    """Fork a worker for every connection received, report the status of each that ends, kill what is to be killed."""
    for name in modules:
        with suppress(Exception):  # the worker that needs it says what is wrong
            importlib.import_module(name)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([control.fileno(), reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.remove(pid)
                control.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())
        if control.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            os._exit(0)
        if descriptors:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (reading, writing, control.detach()):
                    os.close(descriptor)
                os.setsid()
                serve(Connection(descriptors[0]))
            os.close(descriptors[0])
            children.add(pid)
            control.send(json.dumps({"started": pid}).encode())
        elif (doomed := json.loads(message)["kill"]) in children:
            os.kill(doomed, signal.SIGKILL)


def main(role: str, descriptor: int, modules: list[str]) -> None:
    """Be what the parent asked for."""
    if role == "worker":
        serve(Connection(descriptor))
    die_with_parent()
    serve_forks(socket.socket(fileno=descriptor), modules)
