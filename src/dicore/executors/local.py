"""Runs payloads in worker processes of this machine: one that crashes or hangs takes nothing else with it."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dicore.workers import Done, Lost, Service, WorkerPool

__all__ = [
    "ExecutorError",
    "LocalExecutor",
    "Result",
    "WorkerStartError",
    "answer_of",
    "failure",
    "function_of",
]

# A process may die for reasons that are not its payload's (out of memory beside a large one); twice is no accident.
_MOST_TRIES = 2

Result = dict[str, Any]
Function = Callable[[Mapping[str, Any]], Result]


class ExecutorError(RuntimeError):
    """The payloads cannot be run as asked. The message says what is missing and what to do."""


class WorkerStartError(ExecutorError):
    """No worker could be prepared."""


def function_of(name: str) -> Function:
    """The function called "module:name". Raises ExecutorError."""
    module, _, attribute = name.partition(":")
    try:
        found: Function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ExecutorError(f"there is no function {name!r} to run: {error}") from error
    return found


def failure(reason: str) -> Result:
    """What takes the place of a result."""
    return {"error": reason}


def answer_of(call: Function, payload: Mapping[str, Any]) -> Result:
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
    call = function_of(function)
    return Service(lambda task: answer_of(call, task[1]))


class LocalExecutor:
    """Worker processes of one function. They stay between runs; `close` ends them."""

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
            "dicore.executors.local:start",
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
