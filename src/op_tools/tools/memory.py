"""MemoryMonitor: how much memory the process holds over time, on the host and on its device.

    with op_tools.memory.MemoryMonitor():
        train()

A daemon thread samples; the program's own threads do nothing for it. `python -m op_tools.memory --pid PID` watches another
process and its children from outside.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from dicore.files import write_text
from dicore.settings import SettingError, setting
from op_tools.engine import ENGINE
from op_tools.memory_plot import plot, size_text
from op_tools.results import Results, rank_info
from op_tools.settings import ToolSettings
from op_tools.tool import Tool

__all__ = ["MemoryMonitor", "MemorySettings", "ProcessTree", "main"]

COLUMNS = (
    "time_s", "host_rss_bytes", "host_peak_bytes", "device_allocated_bytes", "device_reserved_bytes", "device_peak_bytes",
    "step", "rank", "pid",
)  # fmt: skip
FOLDER, FILE = "process_memory_result", "process_memory_info"
_SHORTEST, _LONGEST = 0.01, 86400.0
_MOST_POINTS = 4000


def interval(text: str) -> float:
    """Read a number of seconds."""
    seconds = float(text)
    if not _SHORTEST <= seconds <= _LONGEST:
        raise ValueError(f"expected seconds, {_SHORTEST} or more and {_LONGEST:.0f} or less, got {text!r}")
    return seconds


@dataclasses.dataclass(frozen=True)
class MemorySettings(ToolSettings):
    """Settings of MemoryMonitor."""

    interval: float = setting(
        0.5, "OP_TOOLS_MEMORY_INTERVAL", interval, "seconds between two samples of memory"
    )

    def __post_init__(self) -> None:
        try:
            interval(str(self.interval))
        except ValueError as error:
            raise SettingError(f"interval: {error}") from None


class HostMemory(NamedTuple):
    """What a process holds now, and the most it has held."""

    now: int
    peak: int


def host_memory(pid: int | str = "self") -> HostMemory:
    """Resident memory of a process. The kernel's own peak also knows what happened between two samples."""
    figures = {"VmRSS": 0, "VmHWM": 0}
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            name, _, value = line.decode(errors="replace").partition(":")
            if name in figures:
                figures[name] = int(value.split()[0]) * 1024
    return HostMemory(figures["VmRSS"], max(figures.values()))


class DeviceMemory(NamedTuple):
    """Held by tensors, taken from the device, and the most that tensors have held; over all devices."""

    allocated: int
    reserved: int
    peak: int


def device_memory() -> DeviceMemory | None:
    """The accelerator's figures of this process; None where there is none, or where it is not in use yet."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return None
    module: Any = torch.get_device_module(accelerator)
    initialized = getattr(module, "is_initialized", None)
    if initialized is None or not initialized():  # looking must not start a device
        return None
    names = ("memory_allocated", "memory_reserved", "max_memory_allocated")
    read = [getattr(module, name, None) or getattr(torch.accelerator, name, None) for name in names]
    if any(function is None for function in read):
        return None
    figures = [sum(int(function(index)) for index in range(module.device_count())) for function in read]  # type: ignore[misc]
    return DeviceMemory(*figures)


class Curves:
    """The samples for the plot, never more than a few thousand: beyond that, every other one goes."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int, int | None]] = []
        self._every = 1
        self._seen = 0

    def add(self, seconds: float, host: int, device: int | None) -> None:
        """Take a sample, if its turn has come."""
        if self._seen % self._every == 0:
            self.points.append((seconds, host, device))
            if len(self.points) >= _MOST_POINTS:
                self.points = self.points[::2]
                self._every *= 2
        self._seen += 1

    def svg(self, title: str) -> str:
        curves = {"host": [(seconds, size) for seconds, size, _ in self.points]}
        if device := [(seconds, size) for seconds, _, size in self.points if size is not None]:
            curves["device"] = device
        return plot(title, curves)


class MemoryMonitor(Tool):
    """Samples the memory of this process, and of its devices once they are in use."""

    section = "memory"
    command_name = "memory"
    order = 90
    hook_name = "MemoryMonitorHook"
    report_section = "memory"
    judges = True
    gate_value = "SIZE"
    schema = MemorySettings
    result_folder = FOLDER
    result_file = FILE
    columns: ClassVar = COLUMNS
    uses_api = False

    @classmethod
    def faults(cls, rows: Iterable[Mapping[str, Any]], limit: int = 0) -> list[str]:
        highest: dict[Any, int] = {}
        for row in rows:
            pid, peak = row.get("pid"), int(row["host_peak_bytes"])
            highest[pid] = max(peak, highest.get(pid, 0))
        return [
            f"process {pid} had {size_text(peak)} of host memory at its peak; the limit is {size_text(limit)}"
            for pid, peak in highest.items()
            if peak > limit
        ]

    @classmethod
    def inconclusive(cls, rows: Sequence[Mapping[str, Any]]) -> str:
        reason = "there is no sample, so nothing is known. Check the results folder and the disk."
        return "" if rows else reason

    def opened(self) -> None:
        self.curves = Curves()
        self.host_peak = 0
        self.device_peak: int | None = None
        self._began = time.perf_counter()
        self._pid = os.getpid()
        self._sampling = threading.Lock()
        self._ended = threading.Event()
        self.open_results()
        self.sample()
        self._thread = threading.Thread(target=self._watch, name="op_tools memory monitor", daemon=True)
        ENGINE.quietly(self._thread.start)  # a thread of ours: the tools do not follow it

    def _watch(self) -> None:
        ended, seconds = self._ended, self.settings.interval
        while not ended.wait(seconds):
            ENGINE.guarded(self, None, self.sample)

    def sample(self) -> None:
        with self._sampling:
            if self.results is None or os.getpid() != self._pid:
                return
            host, device = host_memory(), device_memory()
            seconds = time.perf_counter() - self._began
            self.host_peak = max(self.host_peak, host.peak)
            if device is not None:
                self.device_peak = max(self.device_peak or 0, device.peak)
            self.curves.add(seconds, host.now, None if device is None else device.allocated)
            self.results.append(
                {
                    "time_s": round(seconds, 3),
                    "start_us": time.time() * 1e6,
                    "host_rss_bytes": host.now,
                    "host_peak_bytes": self.host_peak,  # the kernel's own may fall behind what was seen
                    "device_allocated_bytes": "" if device is None else device.allocated,
                    "device_reserved_bytes": "" if device is None else device.reserved,
                    "device_peak_bytes": "" if device is None else device.peak,
                    "step": ENGINE.step,
                    **rank_info(),
                    "pid": self._pid,
                }
            )

    def svg(self) -> str:
        """Host and device memory over time as a standalone SVG drawing."""
        return self.curves.svg(f"memory of process {self._pid}")

    def after_fork(self) -> None:
        # The thread is the parent's, and so are the rows: the child is another process with figures of its own.
        self._sampling = threading.Lock()

    def closed(self) -> None:
        if self.results is None or os.getpid() != self._pid:
            return
        self._ended.set()
        self._thread.join(timeout=5)
        self.sample()
        results, self.results = self.results, None
        results.close()
        device = "" if self.device_peak is None else f", {size_text(self.device_peak)} on the device"
        self.say(
            f"op_tools: MemoryMonitor: at most {size_text(self.host_peak)} on the host{device}; "
            f"samples {results.saved}, plot: {_write_plot(results, self.svg())}"
        )


def _write_plot(results: Results, svg: str) -> str:
    """Beside the CSV file. A full disk costs the drawing, and nothing else."""
    path = Path(results.csv_path).with_suffix(".svg")
    try:
        write_text(path, svg)
    except OSError as error:
        return f"not written ({error.strerror})"
    return path.name


# -- another process -------------------------------------------------------------------------------------------


class ProcessTree:
    """A process and all it has started, seen through /proc."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._started = _stat(pid)[1]  # tells the process from a later one with the same number
        self.peaks: dict[int, int] = {}

    def alive(self) -> bool:
        """Whether the process itself still runs."""
        try:
            return _stat(self.pid)[1] == self._started
        except (OSError, IndexError):
            return False

    def members(self) -> list[int]:
        """The process and its descendants."""
        children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    children.setdefault(_stat(int(name))[0], []).append(int(name))
        found = [self.pid]
        for pid in found:
            found += children.get(pid, [])
        return found

    def memory(self) -> HostMemory:
        """What they hold together now, and the sum of the most each has held."""
        now = 0
        for pid in self.members():
            with contextlib.suppress(OSError):
                memory = host_memory(pid)
                now += memory.now
                self.peaks[pid] = max(memory.peak, self.peaks.get(pid, 0))
        return HostMemory(now, sum(self.peaks.values()))


def _stat(pid: int) -> tuple[int, str]:
    """Parent and start time of a process that has not ended."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return int(fields[1]), fields[19]


def watch(tree: ProcessTree, seconds: float, folder: str) -> str:
    """Sample until the process ends or Ctrl-C; the line that says what was found."""
    results = Results(os.path.join(folder, FOLDER), f"{FILE}_of{tree.pid}", COLUMNS)
    curves, began, highest = Curves(), time.perf_counter(), 0
    with contextlib.suppress(KeyboardInterrupt):
        while tree.alive():
            memory, now = tree.memory(), time.perf_counter() - began
            if memory.now:  # else it ended in between
                highest = max(highest, memory.now)
                curves.add(now, memory.now, None)
                results.append(
                    {
                        "time_s": round(now, 3),
                        "start_us": time.time() * 1e6,
                        "host_rss_bytes": memory.now,
                        "host_peak_bytes": max(highest, memory.peak),
                        "pid": tree.pid,
                    }
                )
            time.sleep(seconds)
    results.close()
    plotted = _write_plot(results, curves.svg(f"memory of process {tree.pid} and its children"))
    return (
        f"op_tools: process {tree.pid} and its children held at most {size_text(highest)} at a time; "
        f"samples {results.saved}, plot: {plotted}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m op_tools.memory --pid PID`."""
    parser = argparse.ArgumentParser(
        prog="python -m op_tools.memory", description="Watch the host memory of a process and its children."
    )
    parser.add_argument("--pid", type=int, required=True, help="the process to watch, until it ends")
    parser.add_argument("--interval", type=interval, default=0.5, help="seconds between two samples")
    parser.add_argument("--out", default="op_tools_results", help="folder for the results")
    given = parser.parse_args(arguments)
    try:
        tree = ProcessTree(given.pid)
    except (OSError, IndexError):
        print(
            f"op_tools.memory: there is no process {given.pid}. Give the number of one that runs.",
            file=sys.stderr,
        )
        return 2
    try:
        # Before hours of watching: the folder is there, and files can be made in it.
        folder = os.path.join(given.out, FOLDER)
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        print(watch(tree, given.interval, given.out), flush=True)
    except OSError as error:
        print(
            f"op_tools.memory: {error.filename or given.out} cannot be written: {error.strerror or error}. "
            "Choose another folder with --out.",
            file=sys.stderr,
        )
        return 2
    return 0
