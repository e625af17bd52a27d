"""The store "blobs": the bytes of a tensor are kept once, the .pth files hold references.

Large tensors are files `blobs/<hash>` (shared between ranks that capture the same weights); small ones, of which there
are many, are appended to one pack file per process. A reference says where the bytes are, so that no index has to
survive a crash: bytes are always written before the .pth that refers to them gets its name.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import xxhash

from op_tools.storage.call_info import RESULTS, host_name
from op_tools.storage.container import container
from op_tools.storage.disk import DIRECT_FROM, FileTree, write_all
from op_tools.storage.files import CapturedPart
from op_tools.storage.snapshot import TAG, Snapshot
from op_tools.trees import map_leaves

FOLDER = "blobs"
# A file of its own costs some 40 microseconds, an append to the pack some 5: worth it where the write itself is longer.
OWN_FILE_FROM = DIRECT_FROM
PACK_SIZE = 1 << 30
# Hashes remembered for finding duplicates: about 20 MB, several steps of a large model.
MOST_REMEMBERED = 1 << 16


@dataclass(slots=True, eq=False)
class Blob:
    """Bytes, found by their hash: waiting to be written (`snapshot`), or written (`pack`, `offset`)."""

    digest: bytes
    nbytes: int
    snapshot: Snapshot | None
    written: bool = False
    pack: str = ""  # empty: a file of its own
    offset: int = 0


class BlobsBackend:
    """Hashes on the caller's thread, while the copy is still in the cache; duplicates go no further."""

    kind = "blobs"
    two_stages = False  # where the bytes are is known, and can be referred to, only when they are written

    def __init__(self, root: str, release: Callable[[Snapshot], None]) -> None:
        self._tree = FileTree(root)
        self._release = release
        self._blobs: dict[bytes, Blob] = {}
        self._lock = threading.Lock()
        self._pack = -1
        self._pack_name = ""
        self._pack_end = 0
        self._packs = 0
        self._restarts = 0

    def take(self, snapshot: Snapshot) -> tuple[Any, int]:
        digest = xxhash.xxh3_128_digest(snapshot.memory)
        with self._lock:
            blob = self._blobs.get(digest)
            if blob is None or blob.nbytes != snapshot.nbytes:
                blob = self._blobs[digest] = Blob(digest, snapshot.nbytes, snapshot)
                if len(self._blobs) > MOST_REMEMBERED:
                    # The oldest. One that is still waiting stays reachable from its job; only duplicates are missed.
                    for oldest in list(self._blobs)[: MOST_REMEMBERED // 8]:
                        del self._blobs[oldest]
        snapshot.blob = blob
        if blob.snapshot is snapshot:
            return snapshot, snapshot.nbytes
        self._release(snapshot)
        return snapshot, 0

    def prepare(self, job: CapturedPart) -> None:
        """Nothing can be made before the bytes have an offset."""

    def write(self, job: CapturedPart) -> int:
        written = 0
        for snapshot in job.snapshots:
            # Not only the job that brought the bytes: with several threads a duplicate can overtake it in the queue.
            if not snapshot.blob.written:
                written += self._write_blob(snapshot.blob)
        description = job.description()
        reference_of = cache(reference)  # a snapshot that occurs twice stays one object

        def referring(leaf: Any) -> Any:
            return reference_of(leaf) if type(leaf) is Snapshot else leaf

        job.args, job.kwargs = map_leaves(job.args, referring), map_leaves(job.kwargs, referring)
        written += self._tree.write_described(job.relative_path, [description], container(job.tree()))
        if self._restarts != self._tree.restarts:
            self._start_over()
        return written

    def _start_over(self) -> None:
        """The results were removed: what was written before is gone, and so is the pack behind its descriptor."""
        self._restarts = self._tree.restarts
        with self._lock:
            self._blobs = {digest: blob for digest, blob in self._blobs.items() if not blob.written}
        self._close_pack()

    def _write_blob(self, blob: Blob) -> int:
        snapshot = blob.snapshot
        if snapshot is None:
            raise RuntimeError("a blob lost its bytes before they were written")
        written = blob.nbytes
        if blob.nbytes >= OWN_FILE_FROM:
            relative = f"{RESULTS}/{FOLDER}/{blob.digest.hex()}"
            if self._has(relative, blob.nbytes):
                written = 0
            else:
                self._tree.write(relative, [snapshot.memory])
        elif blob.nbytes:
            blob.pack, blob.offset = self._append(snapshot.memory)
        blob.written = True
        blob.snapshot = None
        self._release(snapshot)
        return written

    def _has(self, relative: str, nbytes: int) -> bool:
        """Another rank, or an earlier run into the same folder, may have written the same bytes."""
        try:
            return os.stat(f"{self._tree.root}/{relative}").st_size == nbytes
        except OSError:
            return False

    def _append(self, memory: memoryview) -> tuple[str, int]:
        if self._pack < 0 or self._pack_end >= PACK_SIZE:
            self._new_pack()
        try:
            write_all(self._pack, [memory])
        except OSError:  # what was written of these bytes belongs to nobody
            nothing, path = self._pack_end == 0, f"{self._tree.root}/{RESULTS}/{FOLDER}/{self._pack_name}"
            self._close_pack()
            if nothing:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise
        offset = self._pack_end
        self._pack_end += len(memory)
        return self._pack_name, offset

    def _new_pack(self) -> None:
        """A pack is never continued: after a kill its last bytes may belong to nobody."""
        self._close_pack()
        while True:
            name = f"{host_name()}_{os.getpid()}_{self._packs}.pack"
            self._packs += 1
            folder = f"{self._tree.root}/{RESULTS}/{FOLDER}"
            os.makedirs(folder, exist_ok=True)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._pack = os.open(f"{folder}/{name}", flags, 0o666)
            except FileExistsError:  # an earlier process with this number: containers count from 1
                continue
            self._pack_name, self._pack_end = name, 0
            return

    def release(self, job: CapturedPart) -> None:
        """After a job was written or given up. Bytes that were given up must not be referred to any longer."""
        for snapshot in job.snapshots:
            blob: Blob = snapshot.blob
            if not blob.written and blob.snapshot is snapshot:
                with self._lock:
                    if self._blobs.get(blob.digest) is blob:
                        del self._blobs[blob.digest]
            self._release(snapshot)

    def after_fork(self) -> None:
        """In a child: these blobs wait in the parent's queue, and the pack is the parent's to append to."""
        self._lock = threading.Lock()
        self._blobs = {}
        self._close_pack()
        self._packs = 0

    def close(self) -> None:
        self._close_pack()
        self._tree.close()

    def _close_pack(self) -> None:
        if self._pack >= 0:
            os.close(self._pack)
        self._pack = -1


def reference(snapshot: Snapshot) -> dict[str, Any]:
    """What stands for a tensor in the .pth."""
    blob: Blob = snapshot.blob
    return {
        TAG: "tensor",
        "hash": blob.digest.hex(),
        "pack": blob.pack,
        "offset": blob.offset,
        "nbytes": blob.nbytes,
        "dtype": str(snapshot.dtype).removeprefix("torch."),
        "shape": snapshot.shape,
        "stride": snapshot.stride,
        "requires_grad": snapshot.requires_grad,
    }
