"""The facade: one object per run that captures calls and never disturbs the training."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from op_tools.device_error import DeviceError
from op_tools.storage.blobs import BlobsBackend
from op_tools.storage.call_info import (
    PARTS,
    CallInfo,
    Kind,
    Limits,
    Part,
    Stats,
    process_label,
)
from op_tools.storage.files import FilesBackend, Job, safe_name
from op_tools.storage.header import header_of
from op_tools.storage.plain import plain
from op_tools.storage.pool import Pool
from op_tools.storage.snapshot import Snapshot, tensor_tree, without_graph
from op_tools.storage.writer import BackgroundWriter

# Between making the contents of files and writing them: enough to keep the disk busy, little beside the queue itself.
DISK_QUEUE_BYTES = 64 << 20
DISK_QUEUE_ITEMS = 256
_BACKENDS: dict[str, type[FilesBackend] | type[BlobsBackend]] = {"files": FilesBackend, "blobs": BlobsBackend}
_stores: weakref.WeakSet[_Core] = weakref.WeakSet()


def _to_standard_error(message: str) -> None:
    print(f"op_tools: {message}", file=sys.stderr)


class _Core:
    """Everything but the face. The writer's thread refers to this and not to the CaptureStore, which can be collected."""

    def __init__(
        self,
        root: Path,
        kind: Kind,
        limits: Limits,
        on_saved: Callable[[str], None] | None,
        on_problem: Callable[[str], None],
    ) -> None:
        self.shown_root = root.as_posix()
        self.kind = kind
        self.limits = limits
        self.stats = Stats()
        self.pool = Pool(limits.queue_bytes)
        # Absolute: the training may change its working directory.
        self.backend = _BACKENDS[kind](str(root.absolute()), self.give_back)
        self.disk = BackgroundWriter(
            self.handle,
            self.drop,
            max_bytes=DISK_QUEUE_BYTES,
            max_items=DISK_QUEUE_ITEMS,
            name="op_tools disk",
        )
        first = self.prepare if self.backend.two_stages else self.handle
        self.writer = BackgroundWriter(
            first, self.drop, max_bytes=limits.queue_bytes, max_items=limits.queue_items
        )
        self.lock = threading.Lock()
        self.signatures: dict[Any, int] = {}
        self.planned_bytes = 0
        self.said: set[str] = set()
        self.on_saved = on_saved
        self.on_problem = on_problem
        _stores.add(self)

    def give_back(self, snapshot: Snapshot) -> None:
        buffer, snapshot.buffer = snapshot.buffer, None
        if buffer is not None:
            self.pool.give(buffer)

    def say(self, topic: str, message: str) -> None:
        """Each topic once, and never an exception: the listener is not worth the training either."""
        with self.lock:
            if topic in self.said:
                return
            self.said.add(topic)
        with contextlib.suppress(Exception):
            self.on_problem(message)

    def lose(self, reason: str) -> None:
        with self.lock:
            self.stats.dropped += 1
            self.stats.complete = False
            self.stats.reason = self.stats.reason or reason

    @property
    def stopped(self) -> bool:
        return self.writer.stopped or self.disk.stopped

    @property
    def is_current(self) -> bool:
        return self.writer.is_current or self.disk.is_current

    def flush(self, timeout: float | None) -> bool:
        if self.is_current:  # a listener asks: what it waits for would wait for it
            return False
        if timeout is None:
            return self.writer.flush() and self.disk.flush()
        end = time.monotonic() + timeout
        return self.writer.flush(timeout) and self.disk.flush(max(0.0, end - time.monotonic()))

    # -- on the writer's threads -----------------------------------------------------------------------------------

    def prepare(self, job: Job) -> bool:
        """Make the contents of the files and pass them on; False when there is no point in trying further."""
        try:
            self.backend.prepare(job)
        except Exception as error:
            self.skip(job, error)
            return True
        if self.disk.put(job, sum(snapshot.nbytes for snapshot in job.snapshots)):
            return True
        self.drop(job)
        return False

    def skip(self, job: Job, error: Exception) -> None:
        """Something is wrong with one job: the next may be all right."""
        self.backend.release(job)
        what = f"{job.relative_path}: {type(error).__name__}: {error}"
        self.lose(what)
        self.say("encode", f"could not save {what}; going on without it.")

    def handle(self, job: Job) -> bool:
        """Write one job; False when there is no point in trying further."""
        try:
            written = self.backend.write(job)
        except OSError as error:
            self.backend.release(job)
            self.lose(f"{error.strerror or error} ({error.filename or job.relative_path})")
            self.say("disk", self.stopped_because(error, job))
            return False
        except Exception as error:
            self.skip(job, error)
            return True
        self.backend.release(job)
        with self.lock:
            self.stats.files += 1
            self.stats.written_bytes += written
        if self.on_saved is not None:
            try:
                self.on_saved(f"{self.shown_root}/{job.relative_path}")
            except Exception as error:
                self.say(
                    "listener", f"on_saved raised {type(error).__name__}: {error}; the file itself is saved."
                )
        return True

    def drop(self, job: Job) -> None:
        self.backend.release(job)
        self.lose("")

    def stopped_because(self, error: OSError, job: Job) -> str:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = (
            "Free some space or set a limit (total_bytes, calls_per_signature, steps)"
            if full
            else "Check that the folder can be written to"
        )
        return (
            f"capture stopped: {error.strerror or error} while writing {self.shown_root}/{job.relative_path}. "
            f"The {self.stats.files} files saved before are complete; the training goes on, the capture is "
            f"incomplete. {remedy}."
        )

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        self.pool.after_fork()
        self.backend.after_fork()
        self.stats = Stats()
        self.planned_bytes = 0


class CaptureStore:
    """Saves the parts of calls under `<root>/op_capture_results/`. No method raises because of the disk.

    put() may be called from any thread. A forked child goes on with a writer, files and counters of its own.
    """

    def __init__(
        self,
        root: str | Path,
        kind: Kind = "files",
        limits: Limits | None = None,
        on_saved: Callable[[str], None] | None = None,  # called by the writer thread with each finished path
        on_problem: Callable[[str], None] | None = None,  # one message per problem; default: standard error
    ) -> None:
        if kind not in _BACKENDS:
            raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(map(repr, _BACKENDS))}")
        self._core = _Core(Path(root), kind, limits or Limits(), on_saved, on_problem or _to_standard_error)
        # Runs when the store is collected and at exit: what was put is not lost because nobody called close().
        self._finalizer = weakref.finalize(self, _shut, self._core)

    @property
    def kind(self) -> Kind:
        return self._core.kind

    @property
    def stats(self) -> Stats:
        core = self._core
        with core.lock:
            return replace(core.stats, waits=core.writer.waits, wait_seconds=core.writer.wait_seconds)

    def admits(self, call: CallInfo) -> bool:
        """Whether the limits let this call in: decided once per call, so that a call is captured whole or not at all."""
        if call.admitted is None:
            call.admitted = self._decide(call)
        return call.admitted

    def _decide(self, call: CallInfo) -> bool:
        core, limits = self._core, self._core.limits
        inside = (limits.ranks is None or call.rank in limits.ranks) and (
            limits.steps is None or call.step is None or call.step in limits.steps
        )
        with core.lock:
            if inside and limits.calls_per_signature is not None:
                key = call.name if call.signature is None else (call.name, call.signature)
                seen = core.signatures.get(key, 0)
                core.signatures[key] = seen + 1
                inside = seen < limits.calls_per_signature
            if inside:
                core.stats.calls += 1
            else:
                core.stats.left_out += 1
        if not inside:
            core.say(
                "limits", "calls outside the capture limits (calls_per_signature, steps, ranks) are left out."
            )
        return inside

    def put(
        self, call: CallInfo, part: Part, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> bool:
        """Copy what the values show now and queue it. False: left out or dropped; stats say why."""
        core = self._core
        try:
            if not self.admits(call):
                return False
            if part not in PARTS:
                raise ValueError(f"part is {part!r}; it must be one of {', '.join(PARTS)}")
            if core.stopped or not self._finalizer.alive:
                core.lose("" if core.stopped else "values were put after close()")
                return False
            return self._enqueue(call, part, args, kwargs or {})
        except DeviceError:  # the program's own error, not the capture's
            raise
        except Exception as error:
            core.lose(f"{call.name}: {type(error).__name__}: {error}")
            core.say(
                "put", f"could not capture {call.name}: {type(error).__name__}: {error}; going on without it."
            )
            return False

    def _enqueue(self, call: CallInfo, part: Part, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        core = self._core
        taken = _Taken(core)
        with without_graph():
            plain_args = tuple([plain(value, tensor=taken) for value in args])
            plain_kwargs = plain(dict(kwargs), tensor=taken)
        job = Job(folder_of(call), part, {}, plain_args, plain_kwargs, taken.snapshots)
        job.header = header_of(call, part, core.kind, taken.snapshots)
        with core.lock:
            core.stats.raw_bytes += taken.raw_bytes
            limit = core.limits.total_bytes
            core.planned_bytes += taken.queued_bytes
            # Stays true from then on: a smaller call that would still fit is refused too, or the capture had holes.
            over = limit is not None and core.planned_bytes > limit
        if over:
            core.backend.release(job)
            core.lose(f"the limit of {limit} bytes was reached")
            core.say(
                "bytes", f"capture has reached its limit of {limit} bytes; what comes later is left out."
            )
            return False
        if core.writer.put(job, taken.queued_bytes):
            return True
        core.backend.release(job)
        core.lose("")
        return False

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything put so far is on disk (or given up). False: the timeout passed first."""
        return self._core.flush(timeout)

    def close(self) -> None:
        """Write what is queued, then end the writer. Later puts are dropped and counted."""
        self._finalizer()

    def __enter__(self) -> CaptureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Taken:
    """Collects the snapshots of one put; a tensor that occurs twice is copied once and stays one tensor."""

    __slots__ = ("core", "queued_bytes", "raw_bytes", "seen", "snapshots")

    def __init__(self, core: _Core) -> None:
        self.core = core
        self.seen: dict[int, Any] = {}
        self.snapshots: list[Snapshot] = []
        self.raw_bytes = 0
        self.queued_bytes = 0

    def __call__(self, tensor: torch.Tensor) -> Any:
        tree = self.seen.get(id(tensor))
        if tree is not None:
            return tree
        tree = tensor_tree(tensor, self.core.pool)
        if type(tree) is Snapshot:
            self._take(tree)
        elif type(tree) is dict:
            for item in tree.values():
                if type(item) is Snapshot:
                    self._take(item)
        self.seen[id(tensor)] = tree
        return tree

    def _take(self, snapshot: Snapshot) -> None:
        self.raw_bytes += snapshot.nbytes
        _, queued = self.core.backend.take(snapshot)
        self.queued_bytes += queued
        self.snapshots.append(snapshot)


def folder_of(call: CallInfo) -> str:
    """`<op>/<process>[/<purpose>]/<id>/<time>[/<side>]`, each safe as a folder name."""
    process = process_label(call.rank, call.world_size)
    above = f"/{safe_name(call.purpose)}" if call.purpose else ""
    below = f"/{safe_name(call.side)}" if call.side else ""
    return f"{safe_name(call.name)}/{process}{above}/{int(call.forward_id)}/{safe_name(call.time)}{below}"


def _shut(core: _Core) -> None:
    """Also run by the garbage collector, which may be at work in any thread, one of the writers' included."""
    if core.is_current:
        threading.Thread(target=_finish, args=(core,), name="op_tools closing").start()
    else:
        _finish(core)


def _finish(core: _Core) -> None:
    core.writer.close()
    core.disk.close()
    core.backend.close()
    core.pool.clear()


def _after_fork_in_child() -> None:
    for core in list(_stores):
        core.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
