"""Runs one function on many pieces of plain data: here, in worker processes, or on a Ray cluster.

for index, result in spread("package.module:function", [({"number": 3}, 0)], workers=2):
    print(index, result)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from op_tools.spread.processes import Pool
from op_tools.spread.task import Result, SpreadError, WorkerError, answer_of, named

__all__ = ["SpreadError", "WorkerError", "spread"]

_MOST_SECONDS = 600.0


def spread(
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
    that every machine must be able to read. Raises SpreadError.
    """
    if not payloads:
        return
    if ray is not None:
        from op_tools.spread.cluster import spread_over_ray

        yield from spread_over_ray(
            function, payloads, address=ray, workers=workers, timeout=timeout, needs=needs
        )
    elif workers > 0:
        with Pool(function, workers=workers, timeout=timeout) as pool:
            yield from pool.run((index, payload) for index, (payload, _) in enumerate(payloads))
    else:
        call = named(function)
        for index, (payload, _) in enumerate(payloads):
            yield index, answer_of(call, payload)
