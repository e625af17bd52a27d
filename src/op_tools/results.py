"""Rows of a tool: kept in an append-only log per process, shown as the CSV file the documents name."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch.distributed as dist

from op_tools.storage.log import Log
from op_tools.storage.views import CsvView


class PlaceInRun(TypedDict):
    """Which of how many processes this is."""

    rank: int
    world_size: int


def place_in_run() -> PlaceInRun:
    """This process's rank and the number of ranks, from torch.distributed or the launcher's variables."""
    return _place_in_run(dist.is_available() and dist.is_initialized())


@functools.lru_cache(maxsize=2)
def _place_in_run(initialized: bool) -> PlaceInRun:
    if initialized:
        return {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    try:
        return {
            "rank": int(os.environ.get("RANK", "0")),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        }
    except ValueError:
        return {"rank": 0, "world_size": 1}


# A forked child may become another rank.
os.register_at_fork(after_in_child=_place_in_run.cache_clear)


class Results:
    """A log and its CSV view. Rows wait in memory until there are `cache_size` of them."""

    def __init__(
        self,
        folder: str,
        name: str,
        columns: Sequence[str],
        cache_size: int = 1000,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.about = dict(about or {})
        self.name = name
        self.columns = tuple(columns)
        self.cache_size = max(1, cache_size)
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        self.stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
        self._waiting: list[Mapping[str, Any]] = []
        self._log: Log | None = None
        self._csv: CsvView | None = None
        self.count = 0

    @property
    def csv_path(self) -> str:
        """`<folder>/<name>_pid<pid>_<time>.csv`; with the rank before the pid in runs of several ranks."""
        where = place_in_run()
        rank = f"rank{where['rank']}_" if where["world_size"] > 1 else ""
        return os.path.join(self.folder, f"{self.name}_{rank}pid{os.getpid()}_{self.stamp}.csv")

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row. It is not copied: the caller makes a new one for the next."""
        self.extend((row,))

    def extend(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows."""
        with self._lock:
            if self._log is None:
                where = place_in_run()
                self._log = Log(self.folder, self.name, about=self.about, **where)
            self._log.extend(rows)
            self._waiting += rows
            self.count += len(rows)
            if len(self._waiting) >= self.cache_size:
                self._flush()

    def flush(self) -> None:
        """Write what waits."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        if self._log is not None:
            self._log.flush()
        if self._waiting:
            if self._csv is None:
                os.makedirs(self.folder, exist_ok=True)
                self._csv = CsvView(self.csv_path, self.columns)
            waiting, self._waiting = self._waiting, []
            self._csv.append(waiting)

    def close(self) -> None:
        """Write everything and close the log."""
        with self._lock:
            self._flush()
            if self._log is not None:
                self._log.close()
                self._log = None

    def after_fork(self) -> None:
        """A forked child starts with files of its own."""
        self._lock = threading.Lock()
        self._open()
