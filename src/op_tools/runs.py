"""A run on disk: the results folder of one program, with the logs of its tools and its captures.

What reads results (diff, report, check, trace, reproduce) starts here, and so does what it says when there is nothing to read.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from op_tools.storage.errors import CaptureError
from op_tools.storage.log import SUFFIX, LogContents, read_log

__all__ = ["LOG_NAMES", "BadInput", "Run", "open_run"]

# The tool a log belongs to, by the beginning of its file name.
LOG_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "capture": "op_capture_info",
        "autocompare": "op_autocompare_info",
        "time_measure": "op_elasped_info",
        "overflow_check": "op_overflow_check_info",
        "observe": "op_observe_info",
        "memory": "process_memory_info",
        "replay": "op_replay_info",
        "diff": "op_diff_info",
        "layers": "op_layer_info",
    }
)
CAPTURES = "op_capture_results"
LAYERS = "op_layer_result"
USAGE, NOTHING = 2, 5


class BadInput(Exception):
    """What the user gave cannot be used. The message says what was wrong, what was expected and what to do next."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Run:
    """The logs of a run by tool, oldest first, and where its captures are."""

    path: Path
    logs: Mapping[str, tuple[Path, ...]]
    captures: Path | None

    def has(self, tool: str) -> bool:
        """Whether the run has a log of this tool."""
        return bool(self.logs.get(tool))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from op_tools.report import html_of

        return html_of(self)

    def contents(self, tool: str) -> Iterator[LogContents]:
        """The logs of a tool, one per process and start of the tool. A log that cannot be read is bad input."""
        for path in self.logs.get(tool, ()):
            yield _read(path)

    def rows(self, tool: str) -> Iterator[dict[str, Any]]:
        """The rows of a tool in the order they were written, each with its process in `pid`, `rank` and `started`."""
        for contents in self.contents(tool):
            header = contents.header
            origin = {key: header.get(key) for key in ("pid", "rank", "world_size", "host", "started")}
            for row in contents.rows:
                yield {**origin, **row}


def _read(path: Path) -> LogContents:
    try:
        return read_log(path)
    except (CaptureError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error


def open_run(path: str | Path) -> Run:
    """Find the logs and captures below a folder, or of one log. Raises BadInput."""
    path = Path(path)
    if not path.exists():
        raise BadInput(
            f"{path} does not exist. Expected the results folder of a run; the tools write to op_tools_results in the "
            f"folder the program was started in, or to OP_TOOLS_RESULTS."
        )
    if path.is_file():
        return _of_file(path)
    _check_readable(path)
    logs: dict[str, list[Path]] = {}
    captures: Path | None = None
    for folder, folders, files in os.walk(path, onerror=_unreadable):
        here = Path(folder)
        # What lies in the folder of a captured call or of a blob is no log: a large capture has millions of files.
        if here.name == CAPTURES:
            if here.parent.name != LAYERS:  # whole modules, not operators
                captures = captures or here
            folders.clear()
        folders[:] = sorted(name for name in folders if name != "blobs" and not name.startswith("."))
        for name in files:
            tool = _tool_of(name)
            if tool is not None:
                logs.setdefault(tool, []).append(here / name)
    if not logs and captures is None:
        raise BadInput(
            f"{path} holds no results of op_tools: no {SUFFIX} file and no folder {CAPTURES}. Give the results folder of "
            f"a run, made for example by `ditorch run script.py --tool autocompare`.",
            NOTHING,
        )
    ordered = {tool: tuple(sorted(paths, key=_age)) for tool, paths in logs.items()}
    return Run(path, MappingProxyType(ordered), captures)


def _of_file(path: Path) -> Run:
    tool = _tool_of(path.name)
    if tool is None:
        hint = " A CSV file is only a view; its log lies beside it." if path.suffix == ".csv" else ""
        raise BadInput(
            f"{path} is not a log of op_tools. Expected a results folder or a {SUFFIX} file.{hint}", USAGE
        )
    _read(path)
    return Run(path, MappingProxyType({tool: (path,)}), None)


def _check_readable(path: Path) -> None:
    if not os.access(path, os.R_OK | os.X_OK):
        raise BadInput(f"{path} cannot be read: permission denied. Check who owns the folder and its mode.")


def _unreadable(error: OSError) -> None:
    raise BadInput(
        f"{error.filename} cannot be read: {error.strerror}. Check who owns the folder and its mode."
    )


@functools.lru_cache(maxsize=4096)
def _tool_of(name: str) -> str | None:
    if not name.endswith(SUFFIX):
        return None
    return next((tool for tool, start in LOG_NAMES.items() if name.startswith(start + "_")), None)


def _age(path: Path) -> tuple[str, str]:
    started = path.name.removesuffix(SUFFIX).partition("pid")[2].partition("_")[2]
    return started, path.name
