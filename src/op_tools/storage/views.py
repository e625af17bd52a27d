"""CSV and sqlite views of row logs. Views can always be made again; the logs are what is kept."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dicore.files import replaced, write_text
from op_tools.engine import native
from op_tools.storage.disk import write_all
from op_tools.storage.log_reader import LogContents, read_log

_SQL_TYPES = (int, float, str, bytes, type(None))
_LARGEST_SQL_INTEGER = 1 << 63


def rows_of(logs: Iterable[str | Path]) -> Iterator[dict[str, Any]]:
    """The rows of several logs, each with where it came from in `pid` and `rank` where it does not say so itself."""
    for path in logs:
        contents: LogContents = read_log(path)
        origin = {key: contents.header.get(key) for key in ("pid", "rank")}
        for row in contents.rows:
            yield {**row, **{key: value for key, value in origin.items() if key not in row}}


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    seen: dict[str, None] = {}
    for row in rows:
        seen.update(dict.fromkeys(row))
    return list(seen)


def _csv_text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows(map(row.get, columns) for row in rows)
    return text.getvalue()


def _csv_lines(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """The same without a header, for the rows of a run: quickly."""
    if native.csv_lines is None:
        return _csv_text(rows, columns, header=False).encode()
    return native.csv_lines(list(rows), tuple(columns))  # type: ignore[no-any-return]


# The files this process has made: a file of its name that it has not made is another process's.
_made: set[tuple[int, Path]] = set()


class CsvView:
    """A CSV file with one header, whatever the number of appends and restarts.

    Each append is one write, and one that fails leaves no half row. A forked child goes on in a file of its own, and so do
    a restart with other columns and a process that has the name of another (containers count processes from 1).
    """

    def __init__(self, path: str | Path, columns: Sequence[str]) -> None:
        self._path = Path(path).absolute()
        self.columns = list(columns)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._chosen = False

    @property
    def path(self) -> Path:
        if self._pid != os.getpid():
            self._leave_parent()
        return self._path

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows; values without a column are left out. Raises OSError where the disk does."""
        if self._pid != os.getpid():
            self._leave_parent()
        with self._lock:
            if not self._chosen:
                self._choose_file()
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                size = os.fstat(descriptor).st_size
                header = b"" if size else _csv_text([], self.columns, header=True).encode()
                text = header + _csv_lines(rows, self.columns)
                try:
                    write_all(descriptor, [text])
                except OSError:
                    os.ftruncate(descriptor, size)
                    if not size:
                        self._path.unlink(missing_ok=True)
                    raise
            finally:
                os.close(descriptor)

    def _leave_parent(self) -> None:
        """In a forked child: the same name with the child's number in it."""
        parent, child = f"pid{self._pid}", f"pid{os.getpid()}"
        path = self._path
        own = path.with_name(path.name.replace(parent, child))
        self._path = own if own != path else path.with_stem(f"{path.stem}_{child}")
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._chosen = False

    def _choose_file(self) -> None:
        """Make the file, or find the one to continue: with the same header, and not of a process with the same number."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        wanted = _csv_text([], self.columns, header=True).encode()
        stem, number = self._path.stem, 1
        while True:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
                break
            if (os.getpid(), self._path) in _made or f"pid{os.getpid()}_" not in self._path.name:
                if not self._path.stat().st_size:
                    break
                with self._path.open("rb") as file:
                    if file.read(len(wanted)) == wanted:
                        self._finish_last_line()
                        break
            number += 1
            self._path = self._path.with_name(f"{stem}-{number}{self._path.suffix}")
        _made.add((os.getpid(), self._path))
        self._chosen = True

    def _finish_last_line(self) -> None:
        """A killed run may have left half a row: new rows must not be glued to it."""
        with self._path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def write_csv(logs: Iterable[str | Path], path: str | Path, columns: Sequence[str] | None = None) -> int:
    """Rows of the logs as one CSV (all columns seen when none are named); the number of rows."""
    rows = list(rows_of(logs))
    write_text(path, _csv_text(rows, columns or _columns(rows), header=True))
    return len(rows)


def _sql_value(value: Any) -> Any:
    if isinstance(value, int) and not -_LARGEST_SQL_INTEGER <= value < _LARGEST_SQL_INTEGER:
        return str(value)
    return value if isinstance(value, _SQL_TYPES) else json.dumps(value, default=str)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""').replace("\0", "") + '"'


def write_sqlite(logs: Iterable[str | Path], path: str | Path, table: str = "rows") -> int:
    """Rows of the logs as a table of a new sqlite file (which replaces an older one); the number of rows."""
    import sqlite3  # only who asks for this view pays for the import

    rows = list(rows_of(logs))
    columns = _columns(rows) or ["pid", "rank"]
    with replaced(path) as temporary, contextlib.closing(sqlite3.connect(temporary)) as database:
        names = ", ".join(map(_quoted, columns))
        database.execute(f"CREATE TABLE {_quoted(table)} ({names})")
        marks = ", ".join("?" * len(columns))
        values = ([_sql_value(row.get(column)) for column in columns] for row in rows)
        database.executemany(f"INSERT INTO {_quoted(table)} VALUES ({marks})", values)
        database.commit()
    return len(rows)
