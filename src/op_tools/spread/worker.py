"""A process that runs one function on the payloads its parent sends, one after the other.

It reads one JSON line per payload from standard input and answers with one JSON line on the descriptor given as its
argument: standard output stays free for whatever an operator may print.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator

from op_tools.spread.task import Result, answer_of, failure, named

__all__ = ["main"]

# A call under way when the parent goes may still end by itself and let the device close in order.
_GRACE_SECONDS = 2.0


def main(descriptor: int) -> None:
    """Serve until standard input ends."""
    call = named(json.loads(sys.stdin.readline())["function"])
    with os.fdopen(descriptor, "w", encoding="utf-8") as answers:
        answers.write("ready\n")
        answers.flush()
        for line in _lines():
            answers.write(_as_line(answer_of(call, json.loads(line))))
            answers.flush()


def _lines() -> Iterator[str]:
    """Lines of standard input, read beside the work: its end means that the parent is gone, even if a call hangs."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put(None)
        time.sleep(_GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=listen, name="op_tools worker input", daemon=True).start()
    while (line := lines.get()) is not None:
        yield line


def _as_line(result: Result) -> str:
    try:
        return json.dumps(result) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        return json.dumps(failure(f"its result is not plain data: {error}")) + "\n"


if __name__ == "__main__":
    main(int(sys.argv[1]))
