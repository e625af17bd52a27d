"""Result files: one CSV row for every case, whatever kind of test it is of; and two such files beside each other.

A row is one line, added with one write at the end of the file, so that a run that is killed leaves at most one torn line,
which the next reader drops. Reads ``.csv.gz`` as well.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from _ditorch.torch_tests.outcomes import PairOutcome, State
from dicore import files

__all__ = [
    "BadResults",
    "Change",
    "Changes",
    "Journal",
    "Row",
    "compare",
    "default_name",
    "read",
    "row_of",
    "write",
]

_LONGEST_MESSAGE, _LONGEST_DETAIL = 500, 3000


class BadResults(ValueError):
    """A file that is no result file of ours, or not of this run."""


@dataclass(frozen=True)
class Row:
    """One case. `file` is a test file, or ``opinfo/<check>``."""

    device: str
    torch: str
    file: str
    case: str
    operator: str
    dtype: str
    result: State
    seconds: float = 0.0
    samples: int = 0
    wider: int = 0
    verdict: int = 0
    message: str = ""
    reason: str = ""
    detail: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.file, self.case


_COLUMNS = [field.name for field in fields(Row)]


def default_name(device_type: str) -> str:
    """The name under which users know these files."""
    return f"{device_type}_summary_of_pytorch_test_case_testing.csv"


def row_of(outcome: PairOutcome, device: str, torch_version: str) -> Row:
    """The row of a pair of the operator database."""
    pair, worst = outcome.pair, outcome.worst
    return Row(
        device,
        torch_version,
        f"opinfo/{pair.check}",
        f"{pair.op}[{pair.dtype}]",
        pair.op,
        pair.dtype,
        outcome.state,
        round(outcome.seconds, 4),
        outcome.samples,
        outcome.wider,
        outcome.verdict,
        outcome.message,
        outcome.reason,
        worst.detail if worst else "",
    )


def write(path: Path, rows: Iterable[Row]) -> None:
    """A whole file at once: complete or not there at all."""
    text = ",".join(_COLUMNS) + "\n" + "".join(_line(row) for row in rows)
    data = text.encode("utf-8", "replace")
    files.write_bytes(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read(path: Path) -> list[Row]:
    """The rows of a file, without a torn last line."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise BadResults(f"{path} cannot be read: {error}") from error
    complete = text[: text.rfind("\n") + 1]
    reader = csv.DictReader(io.StringIO(complete))
    missing = set(_COLUMNS) - set(reader.fieldnames or ())
    if missing:
        raise BadResults(
            f"{path} is no result file of `ditorch torch-tests`: it lacks {', '.join(sorted(missing))}."
        )
    rows = []
    for number, raw in enumerate(reader, 2):
        try:
            rows.append(_row(raw))
        except (ValueError, TypeError) as error:
            raise BadResults(f"{path}, line {number}: {error}") from error
    return rows


def _row(raw: dict[str, str]) -> Row:
    texts = {name: raw[name] for name in _COLUMNS}
    counts = {name: int(raw[name]) for name in ("samples", "wider", "verdict")}
    numbers = {"seconds": float(raw["seconds"]), **counts}
    return Row(**{**texts, **numbers, "result": State(raw["result"]), "detail": _unescaped(raw["detail"])})  # type: ignore[arg-type]


def _line(row: Row) -> str:
    values = asdict(row)
    values["message"] = " ".join(row.message.split())[:_LONGEST_MESSAGE]
    values["detail"] = (
        row.detail[-_LONGEST_DETAIL:].replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "")
    )
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(str(values[name]).replace("\0", "") for name in _COLUMNS)
    return buffer.getvalue()


def _unescaped(text: str) -> str:
    return "\\".join(part.replace("\\n", "\n") for part in text.split("\\\\"))


class Journal:
    """A file that grows row by row; use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._mend()

    def _mend(self) -> None:
        """Drop a torn last line; begin an empty file with the header."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._descriptor, whole)
        if not whole:
            os.write(self._descriptor, (",".join(_COLUMNS) + "\n").encode())

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._descriptor)
        os.close(self._descriptor)

    def add(self, row: Row) -> None:
        os.write(self._descriptor, _line(row).encode("utf-8", "replace"))


# -- two files beside each other -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One case in both files; None: it is not in that file."""

    file: str
    case: str
    before: State | None
    after: State | None
    message: str


@dataclass
class Changes:
    """All cases that differ. A regression is a case that fails now and did not fail before."""

    regressions: list[Change] = field(default_factory=list)
    fixed: list[Change] = field(default_factory=list)
    changed: list[Change] = field(default_factory=list)
    gone: list[Change] = field(default_factory=list)
    added: list[Change] = field(default_factory=list)
    same: int = 0


def compare(before: Iterable[Row], after: Iterable[Row]) -> Changes:
    """Cases are found again by file and name; the last row of a case counts."""
    old, new = ({row.key: row for row in rows} for rows in (before, after))
    changes = Changes()
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was is not None and now is not None and was.result is now.result:
            changes.same += 1
            continue
        shown = now or was
        assert shown is not None
        states = (was.result if was else None, now.result if now else None)
        _list_for(changes, *states).append(Change(*key, *states, shown.message or shown.reason))
    return changes


def _list_for(changes: Changes, was: State | None, now: State | None) -> list[Change]:
    if now is None:
        return changes.gone
    if now.unexpected:
        return changes.changed if was is not None and was.unexpected else changes.regressions
    if was is None:
        return changes.added
    if was.unexpected and now is State.PASSED:
        return changes.fixed
    return changes.changed
