"""Runs one function on many payloads of plain data: here, in worker processes, or on a Ray cluster.

for index, result in run_payloads("package.module:function", [({"number": 3}, 0)], workers=2):
    print(index, result)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dicore.workers import Done, Lost, Service, WorkerPool
from dicore.workers.process import load

__all__ = ["ExecutorError", "LocalExecutor", "Result", "WorkerStartError", "failure", "run_payloads"]

_MOST_SECONDS = 600.0
# A process may die for reasons that are not its payload's (out of memory beside a large one); twice is no accident.
_MOST_TRIES = 2

Result = dict[str, Any]
Function = Callable[[Mapping[str, Any]], Result]


class ExecutorError(RuntimeError):
    """The payloads cannot be run as asked. The message says what is missing and what to do."""


class WorkerStartError(ExecutorError):
    """No worker could be prepared."""


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
        call = _function_of(function)
        for index, (payload, _) in enumerate(payloads):
            yield index, _answer_of(call, payload)


def _function_of(name: str) -> Function:
    """The function called "module:name". Raises ExecutorError."""
    try:
        return load(name)
    except ImportError as error:
        raise ExecutorError(f"there is no function {name!r} to run: {error}") from error


def failure(reason: str) -> Result:
    """What takes the place of a result."""
    return {"error": reason}


def _answer_of(call: Function, payload: Mapping[str, Any]) -> Result:
    """What the function makes of a payload; what it raises, or a result that is not plain data, becomes a failure."""
    try:
        result = call(payload)
    except Exception as error:  # the next payload may be fine
        return failure(f"{type(error).__name__}: {error}")
    try:
        json.dumps(result)
    except (TypeError, ValueError, RecursionError) as error:
        return failure(f"its result is not plain data: {error}")
    return result


def start(_: str, function: str) -> Service:
    """The entry point of a worker."""
    call = _function_of(function)
    return Service(lambda task: _answer_of(call, task[1]))


class LocalExecutor:
    """Worker processes of one function; a crash or a hang is its payload's alone. They stay between runs; `close` ends them."""

    def __init__(
        self,
        function: str,
        *,
        workers: int,
        timeout: float,
        folder: str | None = None,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self._pool = WorkerPool(
            "dicore.executors:start",
            function,
            workers=workers,
            timeout=timeout,
            folder=folder,
            environment={"OMP_NUM_THREADS": "1", **(environment or {})},  # workers share the machine's cores
            start_attempts=_MOST_TRIES,
        )

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, whatever they do."""
        self._pool.close()

    def run(self, tasks: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, Result]]:
        """Results in the order they come in. One run at a time. Raises WorkerStartError."""
        deaths: Counter[int] = Counter()
        self._pool.add("", tasks)
        events = self._pool.run()
        try:
            for event in events:
                match event:
                    case Done(_, (index, _), result):
                        yield index, result
                    case Lost(_, (index, payload), "crash", how):
                        deaths[index] += 1
                        if deaths[index] < _MOST_TRIES:
                            self._pool.add("", [(index, payload)], first=True)
                        else:
                            again = "second try; the first process died too"
                            yield index, failure(f"the process that ran it {how} ({again})")
                    case Lost(_, (index, _), "timeout" | "raised", how):
                        yield index, failure(how)
                    case Lost(cause="start", message=why):
                        raise WorkerStartError(f"no worker process could be prepared: {why}")
        finally:
            events.close()
