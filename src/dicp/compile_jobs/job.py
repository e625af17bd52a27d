"""One run of a compiler: from source text to a file in the cache, or a CompileError that says why not.

Whatever is wrong with the cache, there is a result as long as any folder can be written to: the cache's, or a temporary one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dicore.workers.commands import run_command
from dicp.compile_jobs.disk_cache import DiskCache
from dicp.errors import CompileError, warn_once

__all__ = ["CompileJob", "JobResult", "compile_library"]

TIME_LIMIT = 600.0
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR}
_FULL = "No space left on device"


@dataclass(frozen=True)
class JobResult:
    """What a compiler made. The log is what it wrote; a file from the cache has none."""

    path: Path
    command: str
    log: str = ""
    seconds: float = 0.0
    cached: bool = False


@dataclass(frozen=True)
class CompileJob:
    """A source and how it is compiled.

    In the command `{source}` and `{output}` stand for paths. The key of the cache is made of the source, the command, the
    compiler's own file, and `key`: whatever else the result depends on, such as versions and the instruction set.
    """

    source: str
    command: Sequence[str]
    key: str = ""
    source_name: str = "graph.cpp"
    output_suffix: str = ".so"
    time_limit: float = TIME_LIMIT

    def cache_key(self) -> str:
        """Of all that the result depends on."""
        parts = (self.source, *self.command, _identity(self.command[0]), self.key, self.output_suffix)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(f"{len(part)}:".encode() + part.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:40]

    def run(self, store: DiskCache | None = None) -> JobResult:
        """The file, from the cache or the compiler. Raises CompileError."""
        store = store or DiskCache()
        key = self.cache_key()
        found = store.find(key, self.output_suffix)
        if found is not None:
            return JobResult(found, shlex.join(self.command), cached=True)
        try:
            with store.locked(key, self.time_limit + 10):
                found = store.find(key, self.output_suffix)  # of a process that was faster
                if found is not None:
                    return JobResult(found, shlex.join(self.command), cached=True)
                return self._compile_into(store, key)
        except _FolderError as error:
            return self._compile_elsewhere(error)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return self._compile_elsewhere(error)

    def _compile_into(self, store: DiskCache, key: str) -> JobResult:
        with _removed_later(store.folder) as folder:
            result = self._compile_in(folder)
            path = store.publish(result.path, key, self.output_suffix)
            return JobResult(path, result.command, result.log, result.seconds)

    def _compile_elsewhere(self, reason: OSError) -> JobResult:
        """In a temporary folder, for this process only."""
        folder = DiskCache().folder
        warn_once(
            "cache:unusable",
            f"compiled code cannot be kept in {folder} ({reason.strerror or reason}): it is made again by every process. Set"
            " DICP_CACHE_DIR to a folder with room that this user may write to.",
        )
        tried = []
        for parent in (tempfile.gettempdir(), "/dev/shm", os.getcwd()):
            try:
                return self._compile_in(_process_folder(parent))
            except OSError as error:
                tried.append(f"{parent}: {error.strerror or error}")
        raise CompileError(
            f"no folder can be written to for compiled code: {folder}: {reason.strerror or reason}; {'; '.join(tried)}."
            " Make room, or set DICP_CACHE_DIR or TMPDIR."
        ) from reason

    def _compile_in(self, folder: Path) -> JobResult:
        if shutil.which(self.command[0]) is None:
            raise CompileError(f"there is no compiler {self.command[0]!r} on PATH. Install it.")
        source = folder / f"{self.cache_key()}-{self.source_name}"
        output = source.with_suffix(self.output_suffix)
        source.write_text(self.source, encoding="utf-8", errors="surrogateescape")
        command = [
            part.replace("{source}", str(source)).replace("{output}", str(output)) for part in self.command
        ]
        environment = {
            **os.environ,
            "TMPDIR": str(folder),
        }  # the room that is looked for is that of the compiler too
        result = run_command(command, self.time_limit, environment=environment)
        if result.code == 0 and output.is_file():
            return JobResult(output, shlex.join(command), result.output, result.seconds)
        if _FULL in result.output:
            raise _FolderError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise CompileError(
            f"{_how_it_ended(result.code, self.time_limit)}: {shlex.join(command)}\n{_shortened(result.output)}"
        )


class _FolderError(OSError):
    """There is no room where a compiler worked."""


def compile_library(
    source: str,
    command: Sequence[str],
    key: str = "",
    *,
    time_limit: float = TIME_LIMIT,
    source_name: str = "graph.cpp",
) -> Path:
    """The shared library of a source, from the cache or the compiler. Raises CompileError.

    `command` is a list such as ["g++", "-shared", "-o", "{output}", "{source}"]; `key` says what else the result depends on.
    """
    return CompileJob(source, tuple(command), key, source_name, time_limit=time_limit).run().path


@cache
def _identity(compiler: str) -> str:
    """What changes when the compiler does."""
    path = shutil.which(compiler)
    if path is None:
        return compiler
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{real} {status.st_size} {status.st_mtime_ns}"


@contextmanager
def _removed_later(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_FOLDERS: dict[str, tempfile.TemporaryDirectory[str]] = {}


def _process_folder(parent: str) -> Path:
    """A folder that lives as long as this process."""
    if parent not in _FOLDERS:
        _FOLDERS[parent] = tempfile.TemporaryDirectory(prefix="dicp-", dir=parent, ignore_cleanup_errors=True)
    return Path(_FOLDERS[parent].name)


def _how_it_ended(code: int | None, time_limit: float) -> str:
    if code is None:
        return f"the compiler was ended after {time_limit:.0f} s"
    if code < 0:
        return f"the compiler was ended by {signal.Signals(-code).name}"
    return f"the compiler failed with exit code {code}" if code else "the compiler made no file"


def _shortened(log: str, lines: int = 20) -> str:
    kept = log.strip().splitlines()
    errors = [line for line in kept if "error" in line]
    kept = errors if errors and len(kept) > lines else kept
    return "\n".join(kept[:lines])
