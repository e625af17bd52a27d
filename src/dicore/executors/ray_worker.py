"""What runs in a worker of the cluster: it hands a batch to a process of its own and passes the results on.

That process is the same as without a cluster, so a crash, a hang and a refusal read the same, and the cluster's own worker
survives them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dicore.executors.local import ExecutorError, LocalExecutor

__all__ = ["run_batch"]

# Results of quick tasks travel together.
_SECONDS_BETWEEN_MESSAGES = 0.2
_executors: dict[tuple[object, ...], LocalExecutor] = {}


def run_batch(
    function: str,
    tasks: Sequence[tuple[int, Mapping[str, Any]]],
    caller: Mapping[str, Any],
    timeout: float,
    one_by_one: bool,
) -> Iterator[dict[str, Any]]:
    """Messages: {"results": [(index, result), ...]}, the first one empty; or {"problem": text}, which ends everything."""
    unseen = _unseen(caller)
    if unseen:
        yield {"problem": f"{socket.gethostname()} cannot see {unseen}. Captures must lie on a path that every "
               "machine of the cluster can read under the same name, such as a network file system."}  # fmt: skip
        return
    yield {"results": []}
    said = time.monotonic()
    results: list[tuple[int, dict[str, Any]]] = []
    try:
        for answer in _executor(function, caller, timeout).run(tasks):
            results.append(answer)
            if one_by_one or time.monotonic() - said > _SECONDS_BETWEEN_MESSAGES:
                yield {"results": results}
                results, said = [], time.monotonic()
    except (ExecutorError, OSError) as error:
        yield {"problem": f"on {socket.gethostname()}: {error}"}
        return
    if results:
        yield {"results": results}


def _unseen(caller: Mapping[str, Any]) -> str:
    """The first path this machine should see and does not. Relative ones count from the folder of the one who asks."""
    paths = (os.path.join(caller["folder"], path) for path in caller["needs"])
    return next((path for path in paths if not os.access(path, os.R_OK)), "")


def _executor(function: str, caller: Mapping[str, Any], timeout: float) -> LocalExecutor:
    """The process of this worker; it stays for the next batch, because loading torch takes seconds."""
    key = (function, timeout, caller["folder"], *sorted(caller["environment"].items()))
    if key not in _executors:
        for other in _executors.values():
            other.close()
        _executors.clear()
        folder = caller["folder"] if os.path.isdir(caller["folder"]) else None
        _executors[key] = LocalExecutor(
            function, workers=1, timeout=timeout, folder=folder, environment=caller["environment"]
        )
    return _executors[key]
