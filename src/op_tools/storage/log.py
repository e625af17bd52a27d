"""Rows that survive a kill: one append-only file per process.

File: magic, then records of `length (4) crc32 (4) msgpack`; the first record is the header. A record is whole or it does
not count, so a process killed in the middle of a write costs its last rows at most, and the reader says how many bytes
those were. Rows wait in memory until flush(), the timer or a full buffer; after that a kill of the process does not
lose them. (A power failure may: nothing here waits for the disk.)
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from op_tools.storage.call_info import host_name
from op_tools.storage.disk import write_all
from op_tools.storage.errors import tell_disk_problem
from op_tools.storage.files import safe_name
from op_tools.storage.writer import reset_in_children

MAGIC = b"OPTOOLS-LOG-1\r\n\0"
SUFFIX = ".oplog"
MAX_RECORD = 16 << 20
# Rows kept in memory at most, so that the timer is not the only thing that bounds them.
BUFFER_BYTES = 256 << 10
# Rows kept while the disk does not take them; later ones are lost.
UNWRITTEN_BYTES = 32 << 20

RECORD = struct.Struct("<II")
_logs: weakref.WeakSet[_LogState] = weakref.WeakSet()


@dataclass(eq=False)
class _LogState:
    """What the timer's thread and the finalizer refer to, so that a Log nobody holds can be collected."""

    folder: Path
    name: str
    rank: int
    world_size: int
    about: Mapping[str, Any]
    on_problem: Callable[[str], None] | None
    closed: bool = False

    def __post_init__(self) -> None:
        # Seconds and a number: containers count processes from 1 again at every start.
        self.started = time.strftime("%Y-%m-%d-%H-%M-%S")
        self.encoder = msgspec.msgpack.Encoder(enc_hook=str)
        self.reset()
        _logs.add(self)
        reset_in_children(self)

    def reset(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.buffer = bytearray()
        self.descriptor = -1
        self.path: Path | None = None
        self.written = 0  # bytes of whole records in the file
        self.torn = False
        self.lost = 0
        self.problem = ""

    def encoded(self, row: Mapping[str, Any]) -> bytes:
        try:
            return self.encoder.encode(row)
        except Exception:  # a key or a number msgpack has no form for
            return self.encoder.encode({str(key): str(value) for key, value in row.items()})

    def extend(self, rows: Sequence[Mapping[str, Any]]) -> None:
        try:
            payloads = [self.encoder.encode(row) for row in rows]
        except Exception:  # one of them
            payloads = [self.encoded(row) for row in rows]
        with self.lock:
            for payload in payloads:
                full = self.problem and len(self.buffer) > UNWRITTEN_BYTES
                if full or self.closed or len(payload) > MAX_RECORD:
                    self.lost += 1
                    continue
                self.buffer += RECORD.pack(len(payload), zlib.crc32(payload)) + payload
                if len(self.buffer) > BUFFER_BYTES and not self.problem:  # else the timer tries again
                    self.write_out()

    def flush(self) -> None:
        with self.lock:
            if not self.closed:  # the timer may come late; it would make a second file
                self.write_out()

    def write_out(self) -> None:
        """With the lock held. What cannot be written stays in memory and is tried again; the file never ends in half a row."""
        if self.torn or (not self.buffer and self.descriptor >= 0):
            return
        try:
            if self.descriptor >= 0 and os.fstat(self.descriptor).st_nlink == 0:
                self.leave_file()  # somebody removed the results: rows in a file without a name would be lost
            beginning = self.open() if self.descriptor < 0 else b""
            self.written += write_all(self.descriptor, [beginning, self.buffer])
            self.buffer = bytearray()
            self.problem = ""
        except OSError as error:
            self.take_back()
            first, self.problem = not self.problem, f"{error.strerror or error} ({self.path or self.folder})"
            if not first:
                return
            if self.on_problem is None:
                tell_disk_problem(error, self.path or self.folder)
            else:
                with contextlib.suppress(Exception):
                    self.on_problem(
                        f"result rows can no longer be written: {self.problem}; the training goes on."
                    )

    def take_back(self) -> None:
        """Remove what a failed write has left behind the last whole row; without any row, the file."""
        if self.descriptor < 0:
            return
        try:
            if self.written:
                os.ftruncate(self.descriptor, self.written)
                return
            if self.path is not None:
                self.path.unlink(missing_ok=True)
        except OSError:
            self.torn = True  # rows after a torn one could not be read
            return
        self.leave_file()

    def leave_file(self) -> None:
        """The next rows begin a new one."""
        os.close(self.descriptor)
        self.descriptor, self.path, self.written = -1, None, 0

    def file_name(self, number: int) -> str:
        where = f"rank{self.rank}_{host_name()}_" if self.world_size > 1 else ""
        again = f"_{number}" if number else ""
        return f"{self.name}_{where}pid{os.getpid()}_{self.started}{again}{SUFFIX}"

    def open(self) -> bytes:
        """Make the file; what it has to begin with goes out together with the first rows."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = 0
        while self.descriptor < 0:
            path = self.folder / self.file_name(number)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self.descriptor = os.open(path, flags, 0o666)
            except FileExistsError:
                number += 1
        self.path = path
        process = {"name": self.name, "pid": os.getpid(), "rank": self.rank, "world_size": self.world_size}
        started = {"host": host_name(), "started": self.started, "started_us": time.time_ns() // 1000}
        header = self.encoder.encode({**self.about, **process, **started})
        return MAGIC + RECORD.pack(len(header), zlib.crc32(header)) + header

    def close(self) -> None:
        if self.pid != os.getpid():
            # A forked child may drop its log before after_fork() comes here: the rows in it are the parent's to write.
            return
        with self.lock:
            if not self.closed and (self.buffer or self.descriptor >= 0):
                self.write_out()
            self.closed = True
            if self.descriptor >= 0:
                os.close(self.descriptor)
            self.descriptor = -1

    def after_fork(self) -> None:
        """In a child: buffered rows are the parent's to write, and so is its file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.reset()


class _Timer:
    """One daemon thread for all logs of the process; started with the first."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.interval = 1.0

    @property
    def running(self) -> bool:
        return self._thread is not None

    def start(self, interval: float) -> None:
        with self._lock:
            self.interval = min(self.interval, interval) if self._thread else interval
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="op_tools log timer", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(self.interval)
            for log in list(_logs):
                if log.buffer and not log.closed:
                    log.flush()

    def after_fork(self) -> None:
        self._thread = None
        self._lock = threading.Lock()


_timer = _Timer()
reset_in_children(_timer)


class Log:
    """`<folder>/<name>_pid<pid>_<time>.oplog`, in multi-rank runs `<name>_rank<r>_<host>_pid<pid>_<time>.oplog`.

    Safe to use from several threads. A forked child goes on in a file of its own. No method raises because of the disk.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str,
        *,
        rank: int = 0,
        world_size: int = 1,
        about: Mapping[str, Any] | None = None,  # what else the header says: the tool, its settings
        sync_every: float = 1.0,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self._sync_every = sync_every
        where = (Path(folder).absolute(), safe_name(name), rank, world_size)
        self._state = _LogState(*where, dict(about or {}), on_problem)
        self._finalizer = weakref.finalize(self, _LogState.close, self._state)

    @property
    def path(self) -> Path:
        """The file of this process; made if there is none yet."""
        state = self._state
        if state.path is None:
            state.flush()
        return state.path or state.folder / state.file_name(0)

    @property
    def complete(self) -> bool:
        """Whether every row is in the file or still may get there."""
        state = self._state
        return not state.lost and not (state.closed and state.buffer)

    def unwritten(self) -> list[dict[str, Any]]:
        """The rows that the disk has not taken, as far as memory keeps them."""
        with self._state.lock:
            content = bytes(self._state.buffer)
        rows, end = [], 0
        while end < len(content):
            start = end + RECORD.size
            end = start + RECORD.unpack_from(content, end)[0]
            rows.append(msgspec.msgpack.decode(content[start:end]))
        return rows

    @property
    def problem(self) -> str:
        return self._state.problem

    def append(self, row: Mapping[str, Any]) -> None:
        """Takes a row; it reaches the file at flush(), on the timer, or when the buffer is full."""
        self.extend((row,))

    def extend(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes several rows."""
        if not _timer.running or self._sync_every < _timer.interval:
            _timer.start(self._sync_every)
        self._state.extend(rows)

    def flush(self) -> None:
        """Write out what is buffered: afterwards a kill of the process loses none of it."""
        self._state.flush()

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
