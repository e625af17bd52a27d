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

from op_tools.spread.processes import Pool
from op_tools.spread.task import SpreadError

__all__ = ["run_batch"]

# Results of quick tasks travel together.
_SECONDS_BETWEEN_MESSAGES = 0.2
_pools: dict[tuple[object, ...], Pool] = {}


def run_batch(
    function: str,
    tasks: Sequence[tuple[int, Mapping[str, Any]]],
    place: Mapping[str, Any],
    timeout: float,
    one_by_one: bool,
) -> Iterator[dict[str, Any]]:
    """Messages: {"results": [(index, result), ...]}, the first one empty; or {"problem": text}, which ends everything."""
    unseen = _unseen(place)
    if unseen:
        yield {"problem": f"{socket.gethostname()} cannot see {unseen}. Captures must lie on a path that every "
               "machine of the cluster can read under the same name, such as a network file system."}  # fmt: skip
        return
    yield {"results": []}
    said = time.monotonic()
    results: list[tuple[int, dict[str, Any]]] = []
    try:
        for answer in _pool(function, place, timeout).run(tasks):
            results.append(answer)
            if one_by_one or time.monotonic() - said > _SECONDS_BETWEEN_MESSAGES:
                yield {"results": results}
                results, said = [], time.monotonic()
    except (SpreadError, OSError) as error:
        yield {"problem": f"on {socket.gethostname()}: {error}"}
        return
    if results:
        yield {"results": results}


def _unseen(place: Mapping[str, Any]) -> str:
    """The first path this machine should see and does not. Relative ones count from the folder of the one who asks."""
    paths = (os.path.join(place["folder"], path) for path in place["needs"])
    return next((path for path in paths if not os.access(path, os.R_OK)), "")


def _pool(function: str, place: Mapping[str, Any], timeout: float) -> Pool:
    """The process of this worker; it stays for the next batch, because loading torch takes seconds."""
    key = (function, timeout, place["folder"], *sorted(place["environment"].items()))
    if key not in _pools:
        for other in _pools.values():
            other.close()
        _pools.clear()
        folder = place["folder"] if os.path.isdir(place["folder"]) else None
        _pools[key] = Pool(
            function, workers=1, timeout=timeout, folder=folder, environment=place["environment"]
        )
    return _pools[key]
