"""CSV files of the tools read back, where nothing but them was kept: by other versions of the tools, by people.

A log is better: it is read faster, says more, and tells damage by checksums. Here a row counts if it has as many cells as
the header; what a killed process left of its last line does not.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from op_tools.storage.archive import open_regular
from op_tools.storage.errors import CaptureRefused

__all__ = ["CsvReader", "header_in_name"]

_INTEGERS = frozenset({"forward_id", "step", "rank", "pid", "world_size", "count"})
_FLOATS = frozenset(
    {
        "error_over_bound", "max_abs_diff", "max_relative_diff", "cosine_similarity", "atol", "rtol", "forward_elasped",
        "backward_elasped", "time_s", "host_rss_bytes", "device_allocated_bytes", "device_reserved_bytes",
    }
)  # fmt: skip
_NAME = re.compile(r"(?:_rank(?P<rank>\d+)(?:_[^/]*)?)?_pid(?P<pid>\d+)_(?P<started>[\d-]+)")
# Of published tools, whose rows have no verdict.
_VERDICTS = {"True": "pass", "False": "fail"}


def header_in_name(file: str) -> dict[str, Any]:
    """What the name of a file says of its process: rank, pid, when it started."""
    found = _NAME.search(file)
    if found is None:
        return {}
    header: dict[str, Any] = {
        "pid": int(found["pid"]),
        "started": found["started"],
        "rank": 0,
        "world_size": 1,
    }
    if found["rank"] is not None:  # only files of several ranks have it
        header |= {"rank": int(found["rank"]), "world_size": max(2, int(found["rank"]) + 1)}
    return header


class CsvReader:
    """As `LogReader`, for a CSV file. A header that comes again, as of several flushes, is no row."""

    def __init__(self, path: str | Path) -> None:
        """Raises a CaptureError for a file that is no table of a tool."""
        descriptor, self.size = open_regular(path)
        self.header = header_in_name(Path(path).name)
        self.dropped_bytes = self.damaged_bytes = 0
        self._is_torn = self.size > 0 and os.pread(descriptor, 1, self.size - 1) != b"\n"
        self._file = os.fdopen(descriptor, encoding="utf-8", errors="replace", newline="")
        self._lines = csv.reader(self._file)
        self._columns = next(self._cells(), [])
        if self.size and "name" not in self._columns and "time_s" not in self._columns:
            self.close()
            expected = "a first line with the names of columns"
            raise CaptureRefused(path, "is not a CSV file of op_tools", expected, "Check the path.")

    def __enter__(self) -> CsvReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def rows(self) -> Iterator[dict[str, Any]]:
        for cells, is_last in _with_last(self._cells()):
            if is_last and self._is_torn:
                self.dropped_bytes += _size(cells)
            elif "name" in cells and "forward_id" in cells:
                self._columns = cells
            elif len(cells) == len(self._columns):
                yield self._row(cells)
            elif cells:
                self._drop(cells)

    def _cells(self) -> Iterator[list[str]]:
        while True:
            try:
                yield next(self._lines)
            except StopIteration:
                return
            except csv.Error:  # a cell without an end
                self._drop([""])

    def _drop(self, cells: list[str]) -> None:
        self.dropped_bytes += _size(cells)
        self.damaged_bytes += _size(cells)

    def _row(self, cells: list[str]) -> dict[str, Any]:
        row: dict[str, Any] = dict(zip(self._columns, cells, strict=True))
        for name in _INTEGERS & row.keys():
            row[name] = _integer(row[name])
        for name in _FLOATS & row.keys():
            row[name] = _float(row[name])
        if "verdict" not in row and "allclose" in row:
            row["verdict"] = _VERDICTS.get(row["allclose"], "")
        return row


def _with_last(lines: Iterator[list[str]]) -> Iterator[tuple[list[str], bool]]:
    """Each line, and whether it is the last."""
    waiting = next(lines, None)
    for line in lines:
        assert waiting is not None
        yield waiting, False
        waiting = line
    if waiting is not None:
        yield waiting, True


def _size(cells: list[str]) -> int:
    """Bytes of a line, about."""
    return sum(map(len, cells)) + len(cells)


def _integer(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if number.bit_length() < 64 else None


def _float(text: str) -> float | str | None:
    try:
        return float(text)
    except ValueError:
        return text or None
