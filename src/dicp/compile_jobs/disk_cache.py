"""Compiled files on disk, shared by processes that know nothing of each other.

A file's name has its key and the checksum of what is in it, so one rename publishes both, and a file that was damaged is seen.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dicp.errors import warn_once
from dicp.settings import CACHE_DIR, CACHE_SIZE

__all__ = ["DiskCache", "default_folder"]

_SECONDS_IN_USE = 60.0
"""A file that was asked for so recently is not removed: who asked may not have opened it yet."""
_SECONDS_OF_A_LEFTOVER = 24 * 3600.0
_DIGITS = 32


def default_folder() -> Path:
    """DICP_CACHE_DIR, else `dicp` in the user's cache."""
    chosen = CACHE_DIR.get()
    if chosen:
        return Path(chosen).expanduser()
    try:
        base = os.environ.get("XDG_CACHE_HOME", "").strip() or Path("~/.cache").expanduser()
    except RuntimeError:  # nobody's home
        base = Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"
    return Path(base) / "dicp"


class DiskCache:
    """A folder of compiled files. Raises OSError only where a new file cannot be written."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = default_folder() if folder is None else folder

    def find(self, key: str, suffix: str) -> Path | None:
        """The file of a key, if it is there and whole."""
        for path in sorted(self._shelf(key).glob(f"{key}.*{suffix}")):
            if self._is_whole(path):
                with suppress(OSError):
                    os.utime(path)  # the order in which files are removed
                return path
            warn_once(
                "cache:damaged",
                f"{path} is damaged: it is removed and compiled again. If this happens often, look at the disk, or set"
                " DICP_CACHE_DIR to a folder on another one.",
            )
            with suppress(OSError):
                path.unlink()
        return None

    def publish(self, made: Path, key: str, suffix: str) -> Path:
        """Moves a new file into the cache."""
        shelf = self._shelf(key)
        shelf.mkdir(parents=True, exist_ok=True)
        target = shelf / f"{key}.{checksum(made)}{suffix}"
        try:
            made.replace(target)
        except OSError:  # from another file system
            shutil.copyfile(made, partial := shelf / f".{target.name}.{os.getpid()}.tmp")
            partial.replace(target)
        self.limit()
        return target

    @contextmanager
    def locked(self, key: str, seconds: float) -> Iterator[None]:
        """While one process makes the file of a key, others that want it wait, at most so long."""
        shelf = self._shelf(key)
        shelf.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (shelf / ".lock").open("ab") as file:
            until = time.monotonic() + seconds
            while not _try_lock(file.fileno()) and time.monotonic() < until:
                time.sleep(0.02)
            yield  # closing the file gives the lock back, and so does the end of the process

    def size(self) -> tuple[int, int]:
        """How many files there are, and their bytes."""
        files = list(self._files())
        return len(files), sum(size for _, size, _ in files)

    def limit(self) -> None:
        """Removes what was used longest ago until the folder is within DICP_CACHE_SIZE, and what killed compilers left."""
        now = time.time()
        files = sorted(self._files(), key=lambda file: file[2])
        total, allowed = sum(size for _, size, _ in files), CACHE_SIZE.get()
        for path, size, used in files:
            if total <= allowed:
                break
            if now - used > _SECONDS_IN_USE:
                with suppress(OSError):
                    path.unlink()
                    total -= size
        for left in self.folder.glob("work-*"):
            with suppress(OSError):
                if now - left.stat().st_mtime > _SECONDS_OF_A_LEFTOVER:
                    shutil.rmtree(left, ignore_errors=True)

    def _shelf(self, key: str) -> Path:
        return self.folder / key[:2]

    def _files(self) -> Iterator[tuple[Path, int, float]]:
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*.*"):
            with suppress(OSError):
                if path.name != ".lock":
                    status = path.stat()
                    yield path, status.st_size, status.st_mtime

    @staticmethod
    def _is_whole(path: Path) -> bool:
        try:
            return path.name.split(".")[1] == checksum(path)
        except (OSError, IndexError):
            return False


def checksum(path: Path) -> str:
    """Of a file's bytes, as it stands in names."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: two processes may do the same work, and the later one wins
        return True
    return True
