"""A run on disk: the results folder of one program, with the logs of its tools and its captures.

What reads results (diff, report, check, trace, reproduce) starts here, and so does what it says when there is nothing to read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dicore.settings import size
from op_tools import registry
from op_tools.storage.errors import CaptureError
from op_tools.storage.log import SUFFIX
from op_tools.storage.log_reader import LogContents, LogReader, read_header, read_log

__all__ = ["DERIVED_LOGS", "BadInput", "Run", "kind_of_path", "open_run", "size_option"]

# Logs of what is made from captures afterwards, by the beginning of their file names.
DERIVED_LOGS: Mapping[str, str] = MappingProxyType({"diff": "op_diff_info", "replay": "op_replay_info"})
CAPTURES = "op_capture_results"
LAYERS = "op_layer_result"
USAGE, NOTHING = 2, 5
_CSV = ".csv"
_BEFORE_PROCESS = re.compile(r"(.+?)_(?:rank\d+_.*)?pid\d+_")


class BadInput(Exception):
    """What the user gave cannot be used. The message says what was wrong, what was expected and what to do next."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


def size_option(text: str, option: str) -> int:
    """The bytes that an option of a command gives: `4096`, `100M`, `2G`. Raises BadInput."""
    try:
        return size(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}.") from error


@dataclass(frozen=True)
class Run:
    """The logs of a run by tool, oldest first, and where its captures are.

    A folder that several runs wrote to has, for each tool, the logs of the newest run; `older` counts the others.
    """

    path: Path
    logs: Mapping[str, tuple[Path, ...]]
    captures: Path | None
    older: int = 0

    def has(self, tool: str) -> bool:
        """Whether the run has a log of this tool."""
        return bool(self.logs.get(tool))

    def about_older(self) -> str:
        """One line that says what was left out; empty if nothing was."""
        if not self.older:
            return ""
        logs = "log of an older run" if self.older == 1 else "logs of older runs"
        return f"{self.older} {logs} left out, the newest run of each tool counts: {self.path}"

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
        for path in self.logs.get(tool, ()):
            yield from rows_of_log(path)


def rows_of_log(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of one log as `Run.rows` has them. Raises BadInput."""
    try:
        with LogReader(path) as reader:
            origin = {key: reader.header.get(key) for key in ("pid", "rank", "world_size", "host", "started")}
            for row in reader.rows():
                yield {**origin, **row}
    except (CaptureError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error


def _read(path: Path) -> LogContents:
    try:
        return read_log(path)
    except (CaptureError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error


def open_run(path: str | Path, *, csv: bool = False) -> Run:
    """Find the logs and captures below a folder, or of one log. Raises BadInput.

    `csv`: where there is no log at all, the CSV files take their place, as those that published tools wrote.
    """
    path = Path(path)
    kind = kind_of_path(path)
    if not kind:
        raise BadInput(
            f"{path} does not exist. Expected the results folder of a run; the tools write to op_tools_results in the "
            f"folder the program was started in, or to OP_TOOLS_RESULTS."
        )
    if stat.S_ISREG(kind):
        return _of_file(path)
    if not os.access(path, os.R_OK | os.X_OK):
        raise BadInput(f"{path} cannot be read: permission denied. Check who owns the folder and its mode.")
    logs: dict[str, list[Path]] = {}
    tables: dict[str, list[Path]] = {}
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
            tool, table = _tool_of(name), _tool_of(name, _CSV) if csv else None
            if tool is not None:
                logs.setdefault(tool, []).append(here / name)
            elif table is not None:
                tables.setdefault(table, []).append(here / name)
    logs = logs or tables
    if not logs and captures is None:
        raise BadInput(
            f"{path} holds no results of op_tools: no {SUFFIX} file and no folder {CAPTURES}. Give the results folder of "
            f"a run, made for example by `ditorch run script.py --tool autocompare`.",
            NOTHING,
        )
    newest = {tool: tuple(sorted(_newest(paths), key=_age)) for tool, paths in logs.items()}
    older = sum(map(len, logs.values())) - sum(map(len, newest.values()))
    return Run(path, MappingProxyType(newest), captures, older)


def kind_of_path(path: Path) -> int:
    """The mode of what lies at a path, 0 if there is nothing. Raises BadInput where that cannot be found out."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return 0
        raise BadInput(
            f"{path} cannot be read: {error.strerror}. Check the path, and who may read its folders."
        ) from None


class _Origin(NamedTuple):
    """Which run a log is of, and when it began: exactly, and as its name says."""

    run: str
    began: int
    started: str


def _origin(path: Path) -> _Origin:
    try:
        header = read_header(path)
    except (CaptureError, OSError):
        header = {}  # who reads its rows will say what is wrong
    run, began = header.get("run_id"), header.get("started_us")
    started = _age(path)[0][: len("2026-01-31-23-59-59")]  # the number of a second log in that second aside
    return _Origin(run if isinstance(run, str) else "", began if isinstance(began, int) else 0, started)


def _newest(paths: Sequence[Path]) -> list[Path]:
    """Of the logs of a tool those of its newest run. Watchers of several processes have logs of several names."""
    by_name: dict[str, dict[Path, _Origin]] = {}
    for path in paths:
        name = _BEFORE_PROCESS.match(path.name)
        by_name.setdefault(name[1] if name else "", {})[path] = _origin(path)
    return [path for origins in by_name.values() for path in _of_newest_run(origins)]


def _of_newest_run(origins: Mapping[Path, _Origin]) -> list[Path]:
    identified = [origin for origin in origins.values() if origin.run]
    if not identified:
        return list(origins)
    newest = max(identified, key=lambda origin: (origin.began, origin.started)).run
    first = min(origin.started for origin in identified if origin.run == newest)
    # A log without an id is of an older op_tools, or its process was killed before it could say more.
    return [
        path
        for path, origin in origins.items()
        if (origin.run == newest if origin.run else origin.started >= first)
    ]


def _of_file(path: Path) -> Run:
    tool = _tool_of(path.name)
    if tool is None:
        hint = " A CSV file is only a view; its log lies beside it." if path.suffix == ".csv" else ""
        raise BadInput(
            f"{path} is not a log of op_tools. Expected a results folder or a {SUFFIX} file.{hint}", USAGE
        )
    try:
        LogReader(path).close()
    except (CaptureError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    return Run(path, MappingProxyType({tool: (path,)}), None)


def _unreadable(error: OSError) -> None:
    raise BadInput(
        f"{error.filename} cannot be read: {error.strerror}. Check who owns the folder and its mode."
    )


def _tool_of(name: str, suffix: str = SUFFIX) -> str | None:
    """The tool that a log belongs to."""
    if not name.endswith(suffix):
        return None
    return next((tool for tool, start in _log_names().items() if name.startswith(start + "_")), None)


def _log_names() -> Mapping[str, str]:
    try:
        found = registry.tools()
    except registry.BadTool as error:
        raise BadInput(str(error)) from error
    return {tool.section: tool.result_file for tool in found if tool.result_file} | dict(DERIVED_LOGS)


def _age(path: Path) -> tuple[str, str]:
    started = path.name.removesuffix(SUFFIX).partition("pid")[2].partition("_")[2]
    return started, path.name
