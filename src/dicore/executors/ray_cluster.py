"""Runs payloads on a Ray cluster: batches by size, results as they come, what a lost worker held is run again."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dicore.executors import ExecutorError, LocalExecutor, Result, failure
from dicore.settings import PREFIXES

__all__ = [
    "BATCHES_PER_WORKER",
    "ITEM_COST",
    "LARGEST_BATCH",
    "batch_target",
    "batches_of",
    "run_batch",
    "run_on_ray",
]

_MOST_LOSSES = 3
_CONNECT_SECONDS = 10.0
# An autoscaling cluster may first have to start a machine.
_START_SECONDS = 600.0
_OBJECT_STORE = 100 << 20
# Settings of this program that the workers' processes shall have too; the rest is their machine's own.
_CARRIED = (*PREFIXES, "TORCH_DEVICE_", "PYTHONPATH")


def run_on_ray(
    function: str,
    payloads: Sequence[tuple[Mapping[str, Any], int]],
    *,
    address: str,
    workers: int,
    timeout: float,
    needs: Sequence[str],
) -> Iterator[tuple[int, Result]]:
    """Results as they finish. Raises ExecutorError."""
    ray = _library()
    caller = {"folder": os.getcwd(), "needs": list(needs), "environment": _carried()}
    with _connected(ray, address, workers):
        count = workers or int(ray.cluster_resources().get("CPU", 0)) or 1
        with _Driver(ray, function, payloads, caller, timeout, count) as driver:
            yield from driver.run()


def _library() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ExecutorError(
            f'--ray needs the package ray, which is not installed here ({error}). Install it with `pip install "ray"` or '
            "`pip install ditorch[ray]`, here and on every machine of the cluster; --workers N needs nothing."
        ) from None


def _carried() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_CARRIED)}


# --- connecting -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(ray: Any, address: str, workers: int) -> Iterator[None]:
    """A connection to the cluster; one that was there before is used and left as it is."""
    if ray.is_initialized():
        yield
        return
    if address != "local":
        _check_address(address)
    # Short: sockets lie in it, and their paths may have 107 characters.
    home = tempfile.mkdtemp(prefix="ray-", dir="/tmp") if address == "local" else ""
    try:
        _connect(ray, address, workers, home)
        with _quiet(ray):
            yield
    finally:
        ray.shutdown()
        if home:
            shutil.rmtree(home, ignore_errors=True)


def _connect(ray: Any, address: str, workers: int, home: str) -> None:
    options: dict[str, Any] = {"address": address, "logging_level": logging.ERROR, "log_to_driver": False}
    if home:
        # Small store: results are small, and containers often have a /dev/shm of 64 MB (Ray then takes a file in /tmp).
        options |= {
            "num_cpus": workers or os.cpu_count() or 1,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE,
            "_temp_dir": home,
        }
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # workers see the accelerators
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises many kinds: no cluster, another version, no raylet here
        text = str(error).strip().partition("\n")[0].rstrip(".")
        raise ExecutorError(_advice(address, f"{type(error).__name__}: {text}")) from error


def _check_address(address: str) -> None:
    """Ray itself waits a minute or more for a cluster that is not there."""
    if address == "auto":
        return
    if address.startswith("ray://"):
        raise ExecutorError(
            f"--ray {address}: the addresses of Ray Client do not carry streams of results. Run this on a machine of "
            "the cluster with --ray auto, or give HOST:PORT of the head (6379 unless chosen otherwise)."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ExecutorError(
            f"--ray {address}: expected local, auto, or HOST:PORT of the head of a cluster, such as 10.0.0.1:6379."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ExecutorError(_advice(address, str(error))) from None


def _advice(address: str, why: str) -> str:
    return (
        f"no Ray cluster could be reached with --ray {address}: {why}. Start one with `ray start --head` (and "
        "`ray start --address=HEAD:6379` on the other machines), or use --ray local. A cluster that asks for a token is "
        "reached with --ray auto on one of its machines, or with RAY_AUTH_MODE=token set."
    )


@contextlib.contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Ray prints the loss of a worker to standard output, where our tables or JSON go; we run its tasks again instead."""
    module = getattr(getattr(ray, "_private", None), "worker", None)
    before = getattr(module, "_worker_logs_enabled", None)
    if module is None or before is None:
        yield
        return
    module._worker_logs_enabled = False
    try:
        yield
    finally:
        module._worker_logs_enabled = before


# --- running --------------------------------------------------------------------------------------------------


@dataclass
class _Batch:
    left: dict[int, None]  # indices in order; those with a result are taken out
    one_by_one: bool = False  # each result travels by itself, so that a loss points at its task
    started: bool = False


class _Driver:
    """Keeps `count` batches under way."""

    def __init__(
        self,
        ray: Any,
        function: str,
        payloads: Sequence[tuple[Mapping[str, Any], int]],
        caller: Mapping[str, Any],
        timeout: float,
        count: int,
    ) -> None:
        self.ray = ray
        self.function = function
        self.payloads = payloads
        self.caller = caller
        self.timeout = timeout
        self.count = count
        batches = batches_of([weight for _, weight in payloads], count)
        self.waiting = deque(_Batch(dict.fromkeys(indices)) for indices in batches)
        self.running: dict[Any, _Batch] = {}
        self.losses: Counter[int] = Counter()
        self.heard = time.monotonic()
        # Retrying is ours: Ray would run the whole batch again.
        self.remote = ray.remote(num_returns="streaming", max_retries=0, num_cpus=1)(run_batch)

    def __enter__(self) -> _Driver:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in list(self.running):
            self._drop(stream)

    def run(self) -> Iterator[tuple[int, Result]]:
        while self.waiting or self.running:
            while self.waiting and len(self.running) < self.count:
                self._submit(self.waiting.popleft())
            ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=1.0)
            for stream in ready:
                yield from self._read(stream)
            if not ready:
                self._check_started()

    def _submit(self, batch: _Batch) -> None:
        tasks = [(index, self.payloads[index][0]) for index in batch.left]
        stream = self.remote.remote(self.function, tasks, self.caller, self.timeout, batch.one_by_one)
        self.running[stream] = batch

    def _read(self, stream: Any) -> Iterator[tuple[int, Result]]:
        batch = self.running[stream]
        self.heard = time.monotonic()
        errors = self.ray.exceptions
        try:
            message = self.ray.get(next(stream))
        except StopIteration:
            del self.running[stream]
            yield from self._lost(batch)
        except errors.RayTaskError as error:
            text = str(error).strip().rpartition("\n")[2]
            raise ExecutorError(
                f"a worker of the cluster could not run its task: {text}. Every machine needs the same versions of "
                "Python, ray and ditorch."
            ) from error
        except errors.RayError:  # the worker or its machine is gone, or what it had sent is
            self._drop(stream)
            yield from self._lost(batch)
        else:
            batch.started = True
            yield from self._accepted(batch, message)

    def _accepted(self, batch: _Batch, message: Mapping[str, Any]) -> Iterator[tuple[int, Result]]:
        if "problem" in message:
            raise ExecutorError(str(message["problem"]))
        for index, result in message["results"]:
            if index in batch.left:
                del batch.left[index]
                yield index, result

    def _lost(self, batch: _Batch) -> Iterator[tuple[int, Result]]:
        """Run again what has no result: the task that was probably running alone, so that the rest is not blamed."""
        if not batch.left:
            return
        suspect, *rest = batch.left
        if rest:
            self.waiting.appendleft(_Batch(dict.fromkeys(rest), one_by_one=True))
        self.losses[suspect] += 1
        if self.losses[suspect] < _MOST_LOSSES:
            self.waiting.appendleft(_Batch({suspect: None}, one_by_one=True))
        else:
            yield suspect, failure(f"the cluster lost {_MOST_LOSSES} workers while they ran it")

    def _drop(self, stream: Any) -> None:
        del self.running[stream]
        with contextlib.suppress(Exception):  # it may have ended, and so may the cluster
            self.ray.cancel(stream, force=True)

    def _check_started(self) -> None:
        if any(batch.started for batch in self.running.values()):
            return  # its process has a time limit of its own
        if time.monotonic() - self.heard > _START_SECONDS:
            raise ExecutorError(
                f"the cluster gave no worker within {_START_SECONDS:g} s; it has {self.ray.cluster_resources()}, of "
                f"which {self.ray.available_resources()} are free. `ray status` shows who uses it."
            )


# --- batches ----------------------------------------------------------------------------------------------------

BATCHES_PER_WORKER = 4
LARGEST_BATCH = 64 << 20
# What a task costs beside its bytes (opening files, the call itself), in bytes: empty ones are work too.
ITEM_COST = 64 << 10


def batch_target(weights: Sequence[int], workers: int) -> int:
    """The cost that a batch of more than one task may have."""
    total = sum(weights) + ITEM_COST * len(weights)
    return min(LARGEST_BATCH, -(-total // (BATCHES_PER_WORKER * max(1, workers))))


def batches_of(weights: Sequence[int], workers: int) -> list[list[int]]:
    """Batches of indices: neighbours together, what is larger than a batch alone and first, so that it ends in time."""
    target = batch_target(weights, workers)
    large: list[list[int]] = []
    batches: list[list[int]] = []
    filled = target  # the first one opens a batch
    for index, weight in enumerate(weights):
        cost = weight + ITEM_COST
        if cost >= target:
            large.append([index])
            continue
        if filled + cost > target:
            batches.append([])
            filled = 0
        batches[-1].append(index)
        filled += cost
    return sorted(large, key=lambda batch: -weights[batch[0]]) + batches


# --- what runs in a worker of the cluster -------------------------------------------------------------------------

# It hands a batch to a process of its own and passes the results on. That process is the same as without a cluster, so a
# crash, a hang and a refusal read the same, and the cluster's own worker survives them.

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
