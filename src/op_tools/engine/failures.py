"""Errors of the tools: reported once each, never raised into the program that is watched."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from op_tools.engine.call import Call


class Failures:
    """Counts the tools' own errors and says each kind once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seen: dict[tuple[str, str, str], int] = {}
        self._printed: set[tuple[str, str]] = set()

    def after_fork(self) -> None:
        """Another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def report(self, tool: Any, call: Call | None, error: Exception) -> None:
        """Note an error of a tool at a call; the first of its kind becomes a line and a row in the tool's report."""
        name = call.name if call is not None else ""
        owner = "the engine" if tool is None else type(tool).__name__
        key = (owner, name, type(error).__name__)
        with self._lock:
            first = key not in self.seen
            self.seen[key] = self.seen.get(key, 0) + 1
        if not first:
            return
        trace = traceback.extract_tb(error.__traceback__)
        last = f" ({trace[-1].filename.rsplit('/', 1)[-1]}:{trace[-1].lineno})" if trace else ""
        reason = str(error).strip().split("\n")[0]
        # The same fault met by fifty operators is fifty rows, but one line.
        if (owner, type(error).__name__ + last) not in self._printed:
            self._printed.add((owner, type(error).__name__ + last))
            with contextlib.suppress(OSError, ValueError):
                print(
                    f"op_tools: {owner} could not handle {name or 'a call'}: {type(error).__name__}: "
                    f"{reason}{last}. The program goes on; further such errors are counted, not printed.",
                    file=sys.stderr,
                )
        try:
            if tool is not None:
                tool.failure_row(call, error)
        except Exception as second:  # the report itself is broken: say it, and let the program live
            print(
                f"op_tools: {owner} could not note this in its report: {second}",
                file=sys.stderr,
            )


def is_of_a_signal_handler(error: BaseException) -> bool:
    """Whether one of the program's signal handlers has raised an error: it may have come in between at any step of a tool."""
    codes = {
        code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number))) is not None
    }
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    for function in (handler, getattr(handler, "__func__", None), vars(type(handler)).get("__call__")):
        code = getattr(function, "__code__", None)
        if code is not None:
            return code
    return None
