"""Reading the container of a .pth file without trusting it.

Every size is held against the bytes that are really there before anything is allocated, and the file must have exactly
the form that torch.save and this project write: uncompressed records that do not overlap, under plain names, one
directory at the very end. Whatever else a zip file may be is refused, so that no two readers can disagree about it.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from op_tools.storage.errors import CaptureDamaged, CaptureMissing, CaptureRefused, CaptureUnsupported

MAX_RECORDS = 20_000
MAX_DIRECTORY = 4 << 20
MAX_PICKLE = 16 << 20
# A file that claims far more bytes than its blocks hold is a hole to fall into; compressing file systems reach 1:30.
SPARSE_FROM = 64 << 20
SPARSE_RATIO = 100

# The structures of a zip file, for the writer (container.py) too.
LOCAL = struct.Struct("<4s5H3I2H")
CENTRAL = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR64 = struct.Struct("<4sIQI")
_IN_ZIP64 = 0xFFFFFFFF
_SIZES_BEHIND = 0x8
_ZIP64_ID, _PADDING_ID = 0x0001, 0x4246
_SMALL = 64
_RESAVE = "Capture it again, or save it again with torch.save."
_COPY_AGAIN = "Copy the file again or capture the call again."


@dataclass(frozen=True, slots=True)
class Record:
    start: int
    size: int
    crc: int


def open_regular(path: str | Path) -> tuple[int, int]:
    """Descriptor and size of a regular file that is no symbolic link. FIFOs and devices are refused, not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CaptureMissing(path, "there is no such file", "a .pth file", "Check the path.") from None
    except OSError as error:
        remedy = "Give the path of the file itself, not of a link to it; check its permissions."
        raise CaptureRefused(path, f"cannot be opened ({error.strerror})", "a regular file", remedy) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise CaptureRefused(path, "is not a regular file", "a regular file", "Check the path.")
    if status.st_size > SPARSE_FROM and status.st_blocks * 512 < status.st_size // SPARSE_RATIO:
        os.close(descriptor)
        problem = f"claims {status.st_size} bytes but the disk holds only {status.st_blocks * 512}"
        raise CaptureRefused(path, problem, "a file without holes", _COPY_AGAIN)
    return descriptor, status.st_size


def read_at(descriptor: int, offset: int, size: int) -> bytearray:
    """The bytes from `offset` on; fewer than `size` where the file ends before."""
    content = bytearray(size)
    view = memoryview(content)
    while view and (done := os.preadv(descriptor, [view], offset)):
        view, offset = view[done:], offset + done
    return content[: size - len(view)]


def _is_padding(extra: bytes | bytearray) -> bool:
    """Whether the fields of a record's header are whole, and those that only fill up hold one byte over and over."""
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        position += 4 + size
        content = extra[position - size : position]
        if position > len(extra) or (kind == _PADDING_ID and len(set(content)) > 1):
            return False
        if kind not in (_PADDING_ID, _ZIP64_ID):
            return False
    return position == len(extra)


class Archive:
    """The records of one container. Use as a context manager."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._folder = ""  # the one that all records are in
        self._descriptor, self.size = open_regular(path)
        try:
            self.records = self._index()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, name: str, *, most: int | None = None) -> bytearray:
        """The bytes of a record, checked against its CRC where there is one."""
        record = self.records.get(name)
        if record is None:
            raise self.damaged(f"the record {name!r} is missing", "all records that the file refers to")
        if most is not None and record.size > most:
            raise CaptureRefused(self.path, f"{name} has {record.size} bytes", f"at most {most}", _RESAVE)
        content = self._at(record.start, record.size)
        # torch can be told not to compute CRCs and then writes 0.
        if record.crc and zlib.crc32(content) != record.crc:
            raise self.damaged(f"the bytes of {name} do not match their checksum", "an intact record")
        return content

    def damaged(self, problem: str, expected: str) -> CaptureDamaged:
        return CaptureDamaged(self.path, problem, expected, _COPY_AGAIN)

    def refused(self, problem: str, expected: str) -> CaptureRefused:
        return CaptureRefused(self.path, problem, expected, _RESAVE)

    def _at(self, offset: int, size: int) -> bytearray:
        content = read_at(self._descriptor, offset, size)
        if len(content) < size:
            raise self.damaged("ends too early", "a whole file")
        return content

    def _index(self) -> dict[str, Record]:
        if self.size < END.size or self._at(0, 4) != b"PK\3\4":
            self._refuse_other_format()
        count, directory_size, directory_start = self._end()
        if count > MAX_RECORDS or directory_size > MAX_DIRECTORY:
            problem = f"declares {count} records in a directory of {directory_size} bytes"
            raise self.refused(problem, f"at most {MAX_RECORDS} records and {MAX_DIRECTORY} bytes")
        records: dict[str, Record] = {}
        folded: set[str] = set()
        spans: list[tuple[int, int]] = []
        for name, record, first in self._entries(count, directory_size, directory_start):
            folder, _, rest = name.partition("/")
            if rest.lower() in folded:
                raise self.refused(f"has the record {rest!r} twice", "every name once")
            folded.add(rest.lower())
            if records and folder != self._folder:
                raise self.refused(f"has records under {folder!r} and {self._folder!r}", "one common folder")
            self._folder = folder
            records[rest] = record
            spans.append((first, record.start + record.size))
        self._refuse_overlaps(spans, directory_start)
        self.records = records
        for name, record in records.items():
            if record.size <= _SMALL:  # read or not: what is damaged here may be damaged elsewhere
                self.read(name)
        return records

    def _refuse_other_format(self) -> None:
        start = self._at(0, min(self.size, 2))
        if start[:1] == b"\x80" or (self.size >= 2 and start[:1] in b"(c]}"):
            remedy = "Load it where you trust it and save it again with torch.save."
            problem = "is a bare pickle (or torch's format before 1.6)"
            raise CaptureRefused(self.path, problem, "the zip container of torch.save", remedy)
        raise self.damaged("does not start like a capture", "the zip container of torch.save")

    def _end(self) -> tuple[int, int, int]:
        """Number of records, size and start of the directory, from the last bytes of the file."""
        end = self._at(self.size - END.size, END.size)
        magic, disk, first_disk, here, count, size, start, comment = END.unpack(end)
        if magic != b"PK\5\6" or comment or disk or first_disk or here != count:
            problem = "has no directory at its end (cut short, or with something appended)"
            raise self.damaged(problem, "a whole file")
        finish = self.size - END.size
        # torch writes the 64-bit form always; a file that has one must not say something else in the other.
        if finish >= LOCATOR64.size + END64.size:
            magic, disk, offset, disks = LOCATOR64.unpack(self._at(finish - LOCATOR64.size, LOCATOR64.size))
            if magic == b"PK\6\7":
                finish -= LOCATOR64.size + END64.size
                if offset != finish or disk or disks > 1:
                    raise self.refused("has a directory at an unexpected offset", "one directory at the end")
                end64 = END64.unpack(self._at(offset, END64.size))
                if end64[0] != b"PK\6\6" or end64[6] != end64[7]:
                    raise self.damaged("has a broken end record", "a whole file")
                both = zip((count, size, start), end64[7:10], (0xFFFF, _IN_ZIP64, _IN_ZIP64), strict=True)
                if any(small not in (big, full) for small, big, full in both):
                    raise self.refused("has two directories that disagree", "one directory")
                count, size, start = end64[7:10]
        if start + size != finish:
            problem = f"says its directory is at {start} with {size} bytes, which is not where the file ends"
            raise self.damaged(problem, "a directory that ends the file")
        return count, size, start

    def _entries(self, count: int, size: int, start: int) -> Iterator[tuple[str, Record, int]]:
        directory = self._at(start, size)
        position = 0
        for _ in range(count):
            if position + CENTRAL.size > size:
                raise self.damaged("has a directory that is cut short", f"{count} entries")
            fields = CENTRAL.unpack_from(directory, position)
            magic, flags, method = fields[0], fields[3], fields[4]
            crc, packed, unpacked, name_size, extra_size, comment_size = fields[7:13]
            offset = fields[16]
            position += CENTRAL.size
            raw_name = bytes(directory[position : position + name_size])
            extra = bytes(directory[position + name_size : position + name_size + extra_size])
            position += name_size + extra_size + comment_size
            if magic != b"PK\1\2" or position > size or any(fields[13:15]):
                raise self.damaged("has a broken directory entry", "a whole file")
            name = self._checked_name(raw_name)
            packed, unpacked, offset = self._zip64_sizes(name, extra, packed, unpacked, offset)
            if method or flags & 0x1 or packed != unpacked:
                problem = f"has the compressed or encrypted record {name!r} ({packed} bytes for {unpacked})"
                raise self.refused(problem, "uncompressed records, as torch.save writes them")
            start_of_content = self._content_start(name, raw_name, offset, unpacked, fields[2:10])
            yield name, Record(start_of_content, unpacked, crc), offset
        if position != size:
            raise self.damaged("has more directory entries than it says", f"{count} entries")

    def _checked_name(self, raw: bytes) -> str:
        try:
            name = raw.decode("ascii")
        except UnicodeDecodeError:
            raise self.refused(f"has a record called {raw[:60]!r}", "plain ASCII names") from None
        parts = name.split("/")
        bad = len(parts) < 2 or any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name
        if bad or len(name) > 200 or ":" in name:
            raise self.refused(f"has a record called {name[:60]!r}", "names like 'archive/data/0'")
        return name

    def _zip64_sizes(
        self, name: str, extra: bytes, packed: int, unpacked: int, offset: int
    ) -> tuple[int, int, int]:
        """The 64-bit values where the 32-bit fields are full."""
        values = [unpacked, packed, offset]
        wanted = [n for n, value in enumerate(values) if value == _IN_ZIP64]
        position = 0
        while wanted and position + 4 <= len(extra):
            kind, size = struct.unpack_from("<HH", extra, position)
            if kind == 1 and size >= 8 * len(wanted) and position + 4 + size <= len(extra):
                if size != 8 * len(wanted) and len(wanted) != 3:
                    break
                for index, n in enumerate(wanted):
                    (values[n],) = struct.unpack_from("<Q", extra, position + 4 + 8 * index)
                wanted = []
            position += 4 + size
        if wanted:
            raise self.damaged(f"has no 64-bit sizes for the record {name!r}", "sizes for every record")
        return values[1], values[0], values[2]

    def _content_start(
        self, name: str, raw_name: bytes, offset: int, size: int, in_directory: tuple[int, ...]
    ) -> int:
        """Where the bytes of a record start, from its own header, which must agree with the directory."""
        if offset + LOCAL.size > self.size:
            raise self.damaged(f"says that {name!r} is behind its end", "a whole file")
        fields = LOCAL.unpack(self._at(offset, LOCAL.size))
        start = offset + LOCAL.size + fields[9] + fields[10]
        if fields[0] != b"PK\3\4" or fields[9] != len(raw_name) or start + size > self.size:
            problem = f"declares {size} bytes for {name!r}, more than it has"
            raise self.damaged(problem, "sizes within the file")
        if self._at(offset + LOCAL.size, fields[9]) != raw_name or fields[3]:
            raise self.refused(f"has two names or methods for the record {name!r}", "headers that agree")
        # Checksum and sizes may stand behind the content instead, as they do in files of torch.
        count = 5 if fields[2] & _SIZES_BEHIND else 8
        extra = self._at(offset + LOCAL.size + fields[9], fields[10])
        if fields[1 : 1 + count] != in_directory[:count] or not _is_padding(extra):
            raise self.damaged(f"has a broken header of the record {name!r}", "headers that agree")
        return start

    def _refuse_overlaps(self, spans: list[tuple[int, int]], directory_start: int) -> None:
        end = 0
        for first, last in sorted(spans):
            if first < end:
                raise self.refused("has records that overlap", "records one after the other")
            end = last
        if end > directory_start:
            raise self.refused("has records that overlap its directory", "records before the directory")


def require_little_endian(archive: Archive) -> None:
    if "byteorder" in archive.records and bytes(archive.read("byteorder", most=16)) != b"little":
        problem = "was written on a big-endian machine"
        raise CaptureUnsupported(archive.path, problem, "little-endian values", "Convert it there.")
