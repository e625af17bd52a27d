"""The ranks of a job on this host: which one this is, and how one waits until the others have ended.

A launcher such as torchrun kills all ranks as soon as one leaves with an error. A rank whose gate has failed has done its work,
but the others may be in the middle of theirs.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["LaunchedRank", "LocalRanks", "launched_rank"]

# What a launcher says of one start of one job.
_JOB = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
    "WORLD_SIZE",
)
_RUNNING, _ENDED = b"running", b"ended"


@dataclasses.dataclass(frozen=True)
class LaunchedRank:
    """Which of how many ranks a process was started as, in the job and on this host."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_single(self) -> bool:
        """Whether there are no other ranks."""
        return self.world_size <= 1


def launched_rank(environment: Mapping[str, str] | None = None) -> LaunchedRank:
    """What the variables of the launcher say now; the program may change them later."""
    environment = os.environ if environment is None else environment
    rank, world_size = _numbers(environment, ("RANK", "0"), ("WORLD_SIZE", "1"))
    return LaunchedRank(
        rank, world_size, *_numbers(environment, ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
    )


def _numbers(environment: Mapping[str, str], rank: tuple[str, str], size: tuple[str, str]) -> tuple[int, int]:
    try:
        return int(environment.get(*rank)), int(environment.get(*size))
    except ValueError:  # as the tools do: what is no number is no job
        return 0, 1


class LocalRanks:
    """The other ranks on this host. Each has a file that it holds locked while it lives and that says when it has ended.

    Once all have ended the folder of the files is removed, so a folder that is gone means just that.
    """

    def __init__(
        self, launched: LaunchedRank, folder: str, *, patience: float = 60.0, silence: float = 5.0
    ) -> None:
        self.launched = launched
        self.patience, self.silence = patience, silence
        job = "\n".join(os.environ.get(name, "") for name in _JOB)
        self.folder = Path(folder, f".ranks-{hashlib.sha256(job.encode()).hexdigest()[:16]}")
        self._pid = os.getpid()
        self._file = -1

    def begin(self) -> None:
        """Say that this rank runs. Where that cannot be written nobody waits."""
        if self.launched.is_single or self.launched.local_world_size <= 1:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self.folder / str(self.launched.local_rank), flags, 0o600)
        except OSError:
            return
        with contextlib.suppress(
            OSError
        ):  # a file system without locks: only a killed rank is waited for in vain
            # Unlike flock, such a lock is not handed on to forked children.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._write(_RUNNING)
        atexit.register(self.end)  # before the handlers of the program are registered, so it runs after them

    def _write(self, state: bytes) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, state, 0)

    def end(self) -> None:
        """Say that the program of this rank has ended. A forked child has nothing to say."""
        if self._file < 0 or os.getpid() != self._pid:
            return
        self._write(_ENDED)
        if not self.missing():
            with contextlib.suppress(OSError):
                for path in self.folder.iterdir():
                    path.unlink(missing_ok=True)
                self.folder.rmdir()

    def missing(self) -> list[int]:
        """The local ranks that have not ended."""
        if self._file < 0 or not self.folder.is_dir():
            return []
        others = (rank for rank in range(self.launched.local_world_size) if rank != self.launched.local_rank)
        return [rank for rank in others if not self._has_ended(rank)]

    def _has_ended(self, rank: int) -> bool:
        path = self.folder / str(rank)
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return not self.folder.is_dir()  # else it has not begun
        except OSError:
            return True
        try:
            state = os.read(file, len(_RUNNING))
            if state != _RUNNING:
                return state == _ENDED
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True  # killed: nobody holds the lock
        except OSError:
            return False
        finally:
            os.close(file)

    def wait(self) -> None:
        """Wait until all have ended or patience is at its end, and say so where it takes a while."""
        self.end()
        began, said = time.monotonic(), False
        while missing := self.missing():
            waited = time.monotonic() - began
            names = ", ".join(map(str, missing))
            if waited >= self.patience:
                _say(
                    self.launched, f"local ranks {names} have not ended in {self.patience:g} seconds; leaving"
                )
                return
            if waited >= self.silence and not said:
                said = True
                _say(
                    self.launched,
                    f"waiting for local ranks {names} to end, at most {self.patience:g} seconds: the launcher may kill them "
                    "when this rank leaves with the exit code of a gate",
                )
            time.sleep(0.05)


def _say(launched: LaunchedRank, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"ditorch: rank {launched.rank}: {text}", file=sys.stderr, flush=True)
