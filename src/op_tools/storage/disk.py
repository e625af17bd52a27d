"""Whole files or none, written past the page cache where that pays.

A file appears under its final name only when all of its bytes were handed to the kernel: a killed process leaves at
most a temporary name behind. (A power failure is another matter: nothing here waits for the disk.)

Captures are written once and read much later, if ever. Sending gigabytes of them through the page cache costs more
processor time than everything else here together and drives out what the training has there, so large tensors go
to the disk directly where the file system is known to be good at it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path

from op_tools.storage.call_info import INCOMING, host_name

Bytes = bytes | bytearray | memoryview

# What the kernel takes in one writev.
_MOST_PIECES = 1024
# Each time a folder may be removed again, by each process that finishes.
_MOST_TRIES = 8
# Folders known to exist; bounded because a long run makes one per call.
_MOST_FOLDERS = 1024
# Direct writes need memory, length and position in whole blocks; this is the largest block size in use.
BLOCK = 4096
DIRECT_FROM = 256 << 10
_DIRECT_FILE_SYSTEMS = frozenset({"ext4", "xfs", "overlay"})
_DIRECT = getattr(os, "O_DIRECT", 0)


class FileTree:
    """Atomic writes below one root, by one thread; remembers which folders exist.

    Files are made in one folder, `.incoming`, and moved: making them where they belong, in a folder of its own for every
    call, takes the file system about twice as long, and what a killed process leaves behind lies in one folder.
    """

    def __init__(self, root: str, incoming: str = INCOMING) -> None:
        self.root = root
        self.direct = bool(_DIRECT) and file_system_of(root) in _DIRECT_FILE_SYSTEMS
        self._folders: dict[str, None] = {}
        self._incoming = f"{root}/{incoming}"
        # Two containers may have host, process and thread in common.
        self._token = secrets.token_hex(4)
        self.restarts = 0  # how often the results were removed while the run went on

    def write(self, relative: str, pieces: Sequence[Bytes]) -> int:
        """All pieces as one file, complete or not at all; the number of bytes. Raises OSError."""
        for _ in range(_MOST_TRIES):
            try:
                return self._write_and_move(f"{self.root}/{relative}", pieces)
            except FileNotFoundError:
                # Somebody removed the results while the run goes on: they want a fresh start, not an error. Or another
                # process that has finished has removed the folder for unfinished files.
                self._folders.clear()
                self.restarts += 1
            except OSError as error:
                if error.errno != errno.EXDEV or not self._incoming:
                    raise
                # A folder of the results is on another disk: nothing can be moved there, so files are made there.
                self._incoming = ""
        return self._write_and_move(f"{self.root}/{relative}", pieces)

    def write_described(self, relative: str, description: Sequence[Bytes], pieces: Sequence[Bytes]) -> int:
        """A file, and beside it the `.json` that describes it: both or none. Raises OSError."""
        self.write(f"{relative}.json", description)  # first: where there is a file, it is described
        try:
            return self.write(relative, pieces)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.root}/{relative}.json")
            raise

    def _write_and_move(self, path: str, pieces: Sequence[Bytes]) -> int:
        folder, _, name = path.rpartition("/")
        self._make(folder)
        if self._incoming:
            self._make(self._incoming)
            temporary = f"{self._incoming}/{host_name()}_{os.getpid()}_{threading.get_ident()}_{self._token}"
        else:
            temporary = f"{folder}/.{name}.{os.getpid()}"
        direct = self.direct and any(len(piece) >= DIRECT_FROM and _is_mapped(piece) for piece in pieces)
        descriptor = self._open(temporary, direct)
        try:
            try:
                written = self._write(descriptor, pieces, direct)
            finally:
                os.close(descriptor)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return written

    def close(self) -> None:
        """Remove the folder for unfinished files, unless another process has one there."""
        with contextlib.suppress(OSError):
            os.rmdir(self._incoming)
        self._folders.clear()

    def _make(self, folder: str) -> None:
        if folder in self._folders:
            return
        if folder == self.root:
            os.makedirs(folder, exist_ok=True)
        else:
            self._make(folder.rpartition("/")[0])
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        if len(self._folders) >= _MOST_FOLDERS:
            del self._folders[next(iter(self._folders))]
        self._folders[folder] = None

    def _open(self, path: str, direct: bool) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(path, flags | _DIRECT if direct else flags, 0o666)
        except OSError as error:
            if not direct or error.errno != errno.EINVAL:
                raise
            self.direct = False  # not on this file system after all
            return os.open(path, flags, 0o666)

    def _write(self, descriptor: int, pieces: Sequence[Bytes], direct: bool) -> int:
        size = sum(map(len, pieces))
        if direct and self.direct:
            try:
                write_all(descriptor, self._in_blocks(pieces))
                if size % BLOCK:
                    os.ftruncate(descriptor, size)
                return size
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False  # it can be opened but not written this way
                os.lseek(descriptor, 0, os.SEEK_SET)
                os.ftruncate(descriptor, 0)
        if direct:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_WRONLY)
        return write_all(descriptor, pieces)

    def _in_blocks(self, pieces: Sequence[Bytes]) -> list[Bytes]:
        """The same bytes in whole blocks on page boundaries: large tensors as they are, the rest copied together."""
        blocks: list[Bytes] = []
        gathered = bytearray()
        for piece in pieces:
            if len(gathered) % BLOCK == 0 and len(piece) >= DIRECT_FROM and _is_mapped(piece):
                self._append_copy(blocks, gathered)
                whole = len(piece) // BLOCK * BLOCK
                blocks.append(memoryview(piece)[:whole])
                gathered = bytearray(memoryview(piece)[whole:])
            else:
                gathered += piece
        self._append_copy(blocks, gathered)
        return blocks

    @staticmethod
    def _append_copy(blocks: list[Bytes], content: bytearray) -> None:
        if content:
            page = mmap.mmap(
                -1, -(-len(content) // BLOCK) * BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
            page[: len(content)] = content
            blocks.append(memoryview(page))


def write_all(descriptor: int, pieces: Sequence[Bytes]) -> int:
    """writev until everything is out; the kernel may take less than it was given."""
    total = 0
    for first in range(0, len(pieces), _MOST_PIECES):
        batch = list(pieces[first : first + _MOST_PIECES])
        left = sum(map(len, batch))
        total += left
        while left:
            done = os.writev(descriptor, batch)
            left -= done
            if left:
                batch = _rest(batch, done)
    return total


def _rest(pieces: list[Bytes], done: int) -> list[Bytes]:
    for n, piece in enumerate(pieces):
        if done < len(piece):
            return [memoryview(piece)[done:], *pieces[n + 1 :]]
        done -= len(piece)
    return []


def _is_mapped(piece: Bytes) -> bool:
    """Whether it lies at the start of mapped memory, i.e. on a page of its own."""
    return isinstance(piece, memoryview) and isinstance(piece.obj, mmap.mmap)


def file_system_of(path: str) -> str:
    """The type of the file system a path is (or will be) on; empty where that cannot be said."""
    try:
        best, kind = -1, ""
        real = os.path.realpath(path)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            mount_point = before.split()[4].encode().decode("unicode_escape")
            inside = real == mount_point or real.startswith(mount_point.rstrip("/") + "/")
            if inside and len(mount_point) >= best:  # the last of equals is mounted over the others
                best, kind = len(mount_point), after.split()[0]
        return kind
    except (OSError, ValueError, IndexError):
        return ""
