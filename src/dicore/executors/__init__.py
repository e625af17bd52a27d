"""Runs one function on many payloads of plain data: here, in worker processes, or on a Ray cluster.

for index, result in run_payloads("package.module:function", [({"number": 3}, 0)], workers=2):
    print(index, result)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dicore.executors.local import (
    ExecutorError,
    LocalExecutor,
    Result,
    WorkerStartError,
    answer_of,
    function_of,
)

__all__ = ["ExecutorError", "LocalExecutor", "Result", "WorkerStartError", "run_payloads"]

_MOST_SECONDS = 600.0


def run_payloads(
    function: str,
    payloads: Sequence[tuple[Mapping[str, Any], int]],
    *,
    workers: int,
    ray: str | None = None,
    timeout: float = _MOST_SECONDS,
    needs: Sequence[str] = (),
) -> Iterator[tuple[int, Result]]:
    """Results as they finish, in any order, each with the index of its payload.

    `function` is the "module:name" of a top-level function from a dict to a dict, both of which JSON can hold. A payload
    comes with its weight in bytes. With `workers` processes a payload that crashes or takes longer than `timeout` seconds
    gets the result {"error": why} and the others go on; with 0 all runs in this process, which is what a debugger wants.

    `ray`: the address HOST:PORT of a cluster, "auto" for the one this machine belongs to, or "local" for one made here for
    this call. `workers` then bounds how many payloads run at once; 0: as many as there are CPUs. `needs` are paths
    that every machine must be able to read. Raises ExecutorError.
    """
    if not payloads:
        return
    if ray is not None:
        from dicore.executors.ray_cluster import run_on_ray

        yield from run_on_ray(function, payloads, address=ray, workers=workers, timeout=timeout, needs=needs)
    elif workers > 0:
        with LocalExecutor(function, workers=workers, timeout=timeout) as executor:
            yield from executor.run((index, payload) for index, (payload, _) in enumerate(payloads))
    else:
        call = function_of(function)
        for index, (payload, _) in enumerate(payloads):
            yield index, answer_of(call, payload)
