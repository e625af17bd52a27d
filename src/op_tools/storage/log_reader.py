"""Logs read back: row by row, whatever their size, or all at once.

A process killed in the middle of a write leaves a torn tail; a broken disk or a copy cut short does worse. What is whole is read.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from op_tools.storage.archive import open_regular
from op_tools.storage.errors import CaptureRefused
from op_tools.storage.files import safe_name
from op_tools.storage.log import MAGIC, MAX_RECORD, RECORD, SUFFIX

__all__ = ["LogContents", "LogReader", "decoded", "find_logs", "read_header", "read_log"]

# What is read at once, and how large a record is expected to be that is looked for behind damage.
_CHUNK = 1 << 20
_LIKELY_RECORD = 64 << 10
# Length below 1 MB, checksum, the beginning of a msgpack map.
_RECORD_LIKE = re.compile(rb"(?=..[\x00-\x0f]\x00....[\x80-\x8f\xde\xdf])", re.DOTALL)


@dataclass(slots=True)
class LogContents:
    """What read_log found. `dropped_bytes` is what was passed over: the torn tail of a killed process, damage."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    header: dict[str, Any] = field(default_factory=dict)
    dropped_bytes: int = 0


def _end_of(content: bytes, position: int) -> int:
    """Where the record at a position ends; 0 if none that is whole and sound begins there."""
    length, crc = RECORD.unpack_from(content, position)
    begin = position + RECORD.size
    end: int = begin + length
    sound = 0 < length <= MAX_RECORD and end <= len(content) and zlib.crc32(content[begin:end]) == crc
    return end if sound else 0


def decoded(payload: bytes) -> dict[str, Any] | None:
    """The row that a record holds; None where it is no row."""
    try:
        value = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class LogReader:
    """A log record by record, in a few megabytes of memory whatever its size. A context manager.

    Damage costs the records it hit: reading goes on at the next one whose checksum fits. `dropped_bytes` counts all that
    was passed over so far, `damaged_bytes` what of it lay before a sound record and is no torn tail.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises a CaptureError for a file that is no log."""
        descriptor, self.size = open_regular(path)
        self.header: dict[str, Any] = {}
        self.dropped_bytes = self.damaged_bytes = 0
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self._left = self.size
        start = self._read(len(MAGIC))
        if start != MAGIC:
            self.close()
            if not MAGIC.startswith(start):
                raise CaptureRefused(path, "is not a log of op_tools", f"a {SUFFIX} file", "Check the path.")
            self.dropped_bytes = len(start)  # killed while the file was being made
        self._records = self._sound_records() if start == MAGIC else iter(())
        first = next(self._records, None)
        if first is not None and not self.damaged_bytes:
            self.header = decoded(first) or {}
        elif first is not None:  # the header is damaged, this is a row
            self._records = chain((first,), self._records)

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[bytes]:
        """The records of the rows, as they are in the file; `rows` decodes them."""
        return self._records

    def rows(self) -> Iterator[dict[str, Any]]:
        for payload in self._records:
            row = decoded(payload)
            if row is None:
                self.drop(payload)
            else:
                yield row

    def drop(self, payload: bytes) -> None:
        """Count a record that holds no row."""
        self.dropped_bytes += RECORD.size + len(payload)
        self.damaged_bytes += RECORD.size + len(payload)

    def _read(self, size: int) -> bytes:
        content = self._file.read(min(size, self._left)) or b""
        self._left -= len(content)
        return content

    def _sound_records(self) -> Iterator[bytes]:
        size, unpack, crc32 = RECORD.size, RECORD.unpack_from, zlib.crc32
        content = b""
        while True:
            position = 0
            while len(content) - position >= size:  # the loop of every row: no call that can be spared
                length, crc = unpack(content, position)
                begin = position + size
                payload = content[begin : begin + length]
                if len(payload) < length or not length or crc32(payload) != crc:
                    break
                yield payload
                position = begin + length
            content = content[position:]
            wanted = size + unpack(content)[0] if len(content) >= size else size
            if len(content) < wanted <= size + MAX_RECORD:  # the file may hold the rest
                more = self._read(max(_CHUNK, wanted))
                content += more
                if more:
                    continue
            if not content:
                return
            skipped = self._next_sound(content)
            content = content[skipped:]
            self.dropped_bytes += skipped
            if not content and not self._left:
                return
            self.damaged_bytes += skipped

    def _next_sound(self, content: bytes) -> int:
        """How much to pass over: up to the next record that is whole, or all that cannot be the beginning of one."""
        for found in _RECORD_LIKE.finditer(content, 1):
            if _end_of(content, found.start()):
                return found.start()
        return len(content) if not self._left else max(1, len(content) - _LIKELY_RECORD)


def read_log(path: str | Path) -> LogContents:
    """All whole rows; what is torn or damaged is dropped and counted. Raises a CaptureError for a file that is no log."""
    with LogReader(path) as reader:
        rows = list(reader.rows())
        return LogContents(rows, reader.header, reader.dropped_bytes)


def read_header(path: str | Path) -> dict[str, Any]:
    """What a log says of itself, without reading its rows; empty where it says nothing. Raises a CaptureError."""
    descriptor, _ = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        start = file.read(len(MAGIC) + RECORD.size)
        if not start.startswith(MAGIC) or len(start) < len(MAGIC) + RECORD.size:
            return {}
        length, _ = RECORD.unpack_from(start, len(MAGIC))
        content = start + file.read(min(length, MAX_RECORD))
    end = _end_of(content, len(MAGIC))
    return decoded(content[len(start) : end]) or {} if end else {}


def find_logs(folder: str | Path, name: str = "") -> list[Path]:
    """The logs below a folder, optionally only those of one name."""
    pattern = f"{safe_name(name)}_*{SUFFIX}" if name else f"*{SUFFIX}"
    return sorted(path for path in Path(folder).rglob(pattern) if path.is_file())
