"""The facade: one object per run that captures calls and never disturbs the training."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from op_tools.device_error import DeviceError
from op_tools.storage.blobs import BlobsBackend
from op_tools.storage.call_info import PARTS, CallInfo, Kind, Limits, Part, Stats
from op_tools.storage.errors import remedy_for, tell_disk_problem, to_standard_error
from op_tools.storage.files import CapturedPart, FilesBackend, header_of, safe_name
from op_tools.storage.folders import FOLDERS
from op_tools.storage.plain import plain
from op_tools.storage.pool import Pool
from op_tools.storage.snapshot import Snapshot, tensor_tree, without_graph
from op_tools.storage.writer import BackgroundWriter, reset_in_children

# Between making the contents of files and writing them: enough to keep the disk busy, little beside the queue itself.
DISK_QUEUE_BYTES = 64 << 20
DISK_QUEUE_ITEMS = 256
_BACKENDS: dict[str, type[FilesBackend] | type[BlobsBackend]] = {"files": FilesBackend, "blobs": BlobsBackend}


@dataclass(eq=False)
class _StoreState:
    """Everything but the face. The writer's thread refers to this and not to the CaptureStore, which can be collected."""

    root: Path
    kind: Kind
    limits: Limits
    on_saved: Callable[[str], None] | None
    on_problem: Callable[[str], None] | None
    stats: Stats = field(default_factory=Stats)
    signatures: dict[Any, int] = field(default_factory=dict)
    planned_bytes: int = 0
    said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = self.limits
        self.pool = Pool(limits.queue_bytes)
        # Absolute: the training may change its working directory.
        self.root_path = str(self.root.absolute())
        self.backend = _BACKENDS[self.kind](self.root_path, self.give_back)
        self.disk = BackgroundWriter(
            self.handle, self.drop, DISK_QUEUE_BYTES, DISK_QUEUE_ITEMS, "op_tools disk"
        )
        first = self.prepare if self.backend.two_stages else self.handle
        self.writer = BackgroundWriter(first, self.drop, limits.queue_bytes, limits.queue_items)
        self.lock = threading.Lock()
        reset_in_children(self)

    def path_of(self, job: CapturedPart) -> str:
        return f"{self.root.as_posix()}/{job.relative_path}"

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
            (self.on_problem or to_standard_error)(message)

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

    def prepare(self, job: CapturedPart) -> bool:
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

    def skip(self, job: CapturedPart, error: Exception) -> None:
        """Something is wrong with one job: the next may be all right."""
        self.backend.release(job)
        what = f"{job.relative_path}: {type(error).__name__}: {error}"
        self.lose(what)
        self.say("encode", f"could not save {what}; going on without it.")

    def handle(self, job: CapturedPart) -> bool:
        """Write one job; False when there is no point in trying further."""
        try:
            written = self.backend.write(job)
        except OSError as error:
            self.backend.release(job)
            self.lose(f"{error.strerror or error} ({error.filename or job.relative_path})")
            if self.on_problem is None:
                tell_disk_problem(error, self.path_of(job))
            else:
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
                self.on_saved(self.path_of(job))
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                self.say("listener", f"on_saved raised {what}; the file itself is saved.")
        return True

    def drop(self, job: CapturedPart) -> None:
        self.backend.release(job)
        self.lose("")

    def stopped_because(self, error: OSError, job: CapturedPart) -> str:
        return (
            f"capture stopped: {error.strerror or error} while writing {self.path_of(job)}. "
            f"The {self.stats.files} files saved before are complete; the training goes on, the capture is "
            f"incomplete. {remedy_for(error)}."
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
        self._state = _StoreState(Path(root), kind, limits or Limits(), on_saved, on_problem)
        # Runs when the store is collected and at exit: what was put is not lost because nobody called close().
        self._finalizer = weakref.finalize(self, _shut, self._state)

    @property
    def kind(self) -> Kind:
        return self._state.kind

    @property
    def stats(self) -> Stats:
        state = self._state
        with state.lock:
            return replace(state.stats, waits=state.writer.waits, wait_seconds=state.writer.wait_seconds)

    def admits(self, call: CallInfo) -> bool:
        """Whether the limits let this call in: decided once per call, so that a call is captured whole or not at all."""
        if call.admitted is None:
            call.admitted = self._decide(call)
        return call.admitted

    def _decide(self, call: CallInfo) -> bool:
        state, limits = self._state, self._state.limits
        inside = (limits.ranks is None or call.rank in limits.ranks) and (
            limits.steps is None or call.step is None or call.step in limits.steps
        )
        with state.lock:
            if inside and limits.calls_per_signature is not None:
                key = call.name if call.signature is None else (call.name, call.signature)
                seen = state.signatures.get(key, 0)
                state.signatures[key] = seen + 1
                inside = seen < limits.calls_per_signature
            if inside:
                state.stats.calls += 1
            else:
                state.stats.left_out += 1
        if not inside:
            named = "(calls_per_signature, steps, ranks)"
            state.say("limits", f"calls outside the capture limits {named} are left out.")
        return inside

    def put(
        self, call: CallInfo, part: Part, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> bool:
        """Copy what the values show now and queue it. False: left out or dropped; stats say why."""
        state = self._state
        try:
            if not self.admits(call):
                return False
            if part not in PARTS:
                raise ValueError(f"part is {part!r}; it must be one of {', '.join(PARTS)}")
            if state.stopped or not self._finalizer.alive:
                state.lose("" if state.stopped else "values were put after close()")
                return False
            return self._enqueue(call, part, args, kwargs or {})
        except DeviceError:  # the program's own error, not the capture's
            raise
        except Exception as error:
            what = f"{call.name}: {type(error).__name__}: {error}"
            state.lose(what)
            state.say("put", f"could not capture {what}; going on without it.")
            return False

    def _enqueue(self, call: CallInfo, part: Part, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        state = self._state
        taken = _Taken(state)
        with without_graph():
            plain_args = tuple([plain(value, tensor=taken) for value in args])
            plain_kwargs = plain(dict(kwargs), tensor=taken)
        side = f"/{safe_name(call.side)}" if call.side else ""
        job = CapturedPart(self.folder_of(call) + side, part, {}, plain_args, plain_kwargs, taken.snapshots)
        job.header = header_of(call, part, state.kind, taken.snapshots)
        with state.lock:
            state.stats.raw_bytes += taken.raw_bytes
            limit = state.limits.total_bytes
            state.planned_bytes += taken.queued_bytes
            # Stays true from then on: a smaller call that would still fit is refused too, or the capture had holes.
            over = limit is not None and state.planned_bytes > limit
        if over:
            state.backend.release(job)
            state.lose(f"the limit of {limit} bytes was reached")
            state.say(
                "bytes", f"capture has reached its limit of {limit} bytes; what comes later is left out."
            )
            return False
        if state.writer.put(job, taken.queued_bytes):
            return True
        state.backend.release(job)
        state.lose("")
        return False

    def folder_of(self, call: CallInfo) -> str:
        """`<op>/<process>[/<purpose>]/<id>/<time>`: where the call is kept below op_capture_results, and no other."""
        FOLDERS.take(self._state.root_path, call)
        return call.folder

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything put so far is on disk (or given up). False: the timeout passed first."""
        return self._state.flush(timeout)

    def close(self) -> None:
        """Write what is queued, then end the writer. Later puts are dropped and counted."""
        self._finalizer()

    def __enter__(self) -> CaptureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class _Taken:
    """Collects the snapshots of one put; a tensor that occurs twice is copied once and stays one tensor."""

    state: _StoreState
    seen: dict[int, Any] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    raw_bytes: int = 0
    queued_bytes: int = 0

    def __call__(self, tensor: torch.Tensor) -> Any:
        tree = self.seen.get(id(tensor))
        if tree is not None:
            return tree
        tree = tensor_tree(tensor, self.state.pool)
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
        _, queued = self.state.backend.take(snapshot)
        self.queued_bytes += queued
        self.snapshots.append(snapshot)


def _shut(state: _StoreState) -> None:
    """Also run by the garbage collector, which may be at work in any thread, one of the writers' included."""
    if state.is_current:
        threading.Thread(target=_finish, args=(state,), name="op_tools closing").start()
    else:
        _finish(state)


def _finish(state: _StoreState) -> None:
    state.writer.close()
    state.disk.close()
    state.backend.close()
    state.pool.clear()
