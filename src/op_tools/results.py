"""Rows of a tool: kept in an append-only log per process, shown as the CSV file the documents name."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch.distributed as dist

from op_tools.settings import RUN_ID
from op_tools.storage.call_info import host_name
from op_tools.storage.errors import CaptureError, tell_disk_problem
from op_tools.storage.log import SUFFIX, Log
from op_tools.storage.log_reader import read_header
from op_tools.storage.views import CsvView

# Column names of the files that users' scripts read, spelling included.
COMPARISON_CSV_COLUMNS = (
    "forward_id", "name", "allclose", "cosine_similarity", "max_abs_diff", "max_relative_diff", "atol", "rtol",
    "error_info",
)  # fmt: skip
TIME_CSV_COLUMNS = (
    "name", "forward_id", "forward_elasped", "backward_elasped", "unit", "input", "output", "grad_inputs",
    "grad_outputs",
)  # fmt: skip
# Where the call of a row stands, as far as a CSV file says it.
LOCATION_COLUMNS = ("call_site", "module", "step", "rank", "phase")


class RankInfo(TypedDict):
    """Which of how many processes this is."""

    rank: int
    world_size: int


def rank_info() -> RankInfo:
    """This process's rank and the number of ranks, from torch.distributed or the launcher's variables."""
    return _rank_info(dist.is_available() and dist.is_initialized())


@functools.lru_cache(maxsize=2)
def _rank_info(initialized: bool) -> RankInfo:
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
os.register_at_fork(after_in_child=_rank_info.cache_clear)


def run_id() -> str:
    """What the logs of one program, of its children and of its ranks have in common, and no other run has.

    Children get it with the environment. os.environ itself stays as it is: it is the program's.
    """
    given = RUN_ID.get()
    if given:
        return given
    made = _made_run_id()
    os.putenv(RUN_ID.name, made)
    return made


def make_run_id(environment: Mapping[str, str]) -> str:
    """The id of the run this process is part of, from the environment it was started with.

    Where the processes of a run have no unique name in common, an earlier run may get the same id: that shows too much,
    which is better than to leave out a rank.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return _torchrun_id(environment)
    sizes = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    names = ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE")
    job = [environment[name] for name in names if environment.get(name)]
    if job and any(environment.get(size, "1") != "1" for size in sizes):
        return "-".join(("ranks", *job))
    parent = multiprocessing.parent_process()
    pid = os.getpid() if parent is None or parent.pid is None else parent.pid
    return f"{host_name()}-{pid}-{_start_of(pid)}"


def _torchrun_id(environment: Mapping[str, str]) -> str:
    run = environment["TORCHELASTIC_RUN_ID"]
    address = "-".join(environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    if environment.get("GROUP_WORLD_SIZE", "1") != "1":
        # On several hosts each agent counts its own restarts and has its own folder.
        return f"torchrun-{run}-{address}"
    # <logs>/<run id>_<random>/attempt_<n>/<local rank>/error.json: a name that no other job has, whatever its run id.
    error_file = Path(environment.get("TORCHELASTIC_ERROR_FILE", ""))
    if len(error_file.parts) > 4:
        run = error_file.parts[-4]
    elif run == "none":
        run = f"{address}-{os.getppid()}"
    return f"torchrun-{run}-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _start_of(pid: int) -> str:
    """When a process started, as its host counts: tells it from a later one with the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return str(time.time_ns()) if pid == os.getpid() else ""


def _environment_at_start() -> Mapping[str, str]:
    """A worker that the program starts may put RANK and MASTER_PORT into os.environ; a launcher did it before."""
    try:
        content = Path("/proc/self/environ").read_bytes()
    except OSError:
        return os.environ
    pairs = (os.fsdecode(item).partition("=") for item in content.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


@functools.cache
def _made_run_id() -> str:
    return make_run_id(_environment_at_start())


# Forked children have it from their parent.
os.register_at_fork(before=_made_run_id)


def mark_run(folder: str, name: str, about: Mapping[str, Any] | None = None) -> None:
    """For a tool that wrote no row: an empty log of this run, where one of an earlier run would pass for its result."""
    mine = run_id()
    logs = list(Path(folder).glob(f"{name}_*{SUFFIX}"))
    if logs and not any(_run_of(path) == mine for path in logs):
        with Log(folder, name, about={**(about or {}), "run_id": mine}, **rank_info()) as log:
            log.flush()


def _run_of(path: Path) -> Any:
    try:
        return read_header(path).get("run_id")
    except (CaptureError, OSError):
        return None


class Results:
    """A log and its CSV view. Rows wait in memory until there are `cache_size` of them."""

    def __init__(
        self,
        folder: str,
        name: str,
        columns: Sequence[str],
        cache_size: int = 1000,
        about: Mapping[str, Any] | None = None,
        *,
        tells: bool = True,
    ) -> None:
        """`tells`: whether it is said here that rows cannot be written, or by who asks for `problem`."""
        self.folder = folder
        self.tells = tells
        # Now and not with the first row: children may start before there is one.
        self.about = {**(about or {}), "run_id": run_id()}
        self.name = name
        self.columns = tuple(columns)
        self.cache_size = max(1, cache_size)
        self._lock = threading.RLock()
        self._open()

    def _open(self) -> None:
        self.stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
        self._waiting: list[Mapping[str, Any]] = []
        self.log: Log | None = None
        self._csv: CsvView | None = None
        self.problem = ""  # why rows are not in the files
        self.count = 0

    @property
    def csv_path(self) -> str:
        """`<folder>/<name>_pid<pid>_<time>.csv`; with the rank before the pid in runs of several ranks."""
        if self._csv is not None:
            return os.path.join(self.folder, self._csv.path.name)
        where = rank_info()
        rank = f"rank{where['rank']}_" if where["world_size"] > 1 else ""
        return os.path.join(self.folder, f"{self.name}_{rank}pid{os.getpid()}_{self.stamp}.csv")

    @property
    def saved(self) -> str:
        """Where the rows are, or why they are not: for a line of text."""
        return f"not saved ({self.problem})" if self.problem else f"saved to {self.csv_path}"

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row. It is not copied: the caller makes a new one for the next."""
        self.extend((row,))

    def extend(self, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._lock:
            if self.log is None:
                where = rank_info()
                quiet = None if self.tells else lambda _: None
                self.log = Log(self.folder, self.name, about=self.about, on_problem=quiet, **where)
            self.log.extend(rows)
            self._waiting += rows
            self.count += len(rows)
            if len(self._waiting) >= self.cache_size:
                self.flush()

    def flush(self) -> None:
        with self._lock:
            if self.log is not None:
                self.log.flush()
            waiting, self._waiting = self._waiting, []
            if waiting and not self.problem:
                self._write_csv(waiting)

    def _write_csv(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A view that cannot be written is given up: the log tries again, and the view can be made of it."""
        if self._csv is None:
            self._csv = CsvView(self.csv_path, self.columns)
        try:
            self._csv.append(rows)
        except OSError as error:
            self.problem = f"{error.strerror or error}: {self.csv_path}"
            if self.tells:
                tell_disk_problem(error, self.csv_path)

    def close(self) -> None:
        """Write everything and close the log."""
        with self._lock:
            self.flush()
            if self.log is not None:
                self.log.close()
                self.problem = self.problem or self.log.problem
                self.log = None

    def after_fork(self) -> None:
        """A forked child starts with files of its own."""
        self._lock = threading.RLock()
        self._open()
