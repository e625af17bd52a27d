"""The container of a .pth file, written directly: a zip of uncompressed records as torch.load expects it.

torch.save costs some hundred microseconds of interpreter time a file, whatever the size. All records but the pickle and
the tensors are the same in every file, so they are made once here, and a file becomes one vectored write.
"""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections import OrderedDict
from typing import Any

import torch

from op_tools.storage.archive import CENTRAL, END, END64, LOCAL, LOCATOR64
from op_tools.storage.constructors import STORAGES
from op_tools.storage.disk import BLOCK, DIRECT_FROM, Bytes
from op_tools.storage.snapshot import Snapshot

ALIGNMENT = 64
# From this size or offset on a record needs the 64-bit fields; a variable so that tests need no 4 GiB.
ZIP64_FROM = 0xFFFFFFFF

_ZIP64_ID = 0x0001
_PADDING_ID = 0x4246
_VERSION = 45  # of the zip specification: what 64-bit fields need

# dtypes that have a storage class of their own; the others are written as untyped bytes plus a dtype.
_STORAGE_CLASSES: dict[torch.dtype, Any] = {dtype: getattr(torch, name) for name, dtype in STORAGES.items()}


class _StorageKey:
    """Stands for the bytes of one snapshot inside the pickle."""

    __slots__ = ("persistent",)

    def __init__(self, persistent: tuple[Any, ...]) -> None:
        self.persistent = persistent


class _TreePickler(pickle.Pickler):
    """Pickles plain data; each Snapshot becomes a tensor over the record `data/<n>` of the container."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.snapshots: list[Snapshot] = []

    def persistent_id(self, obj: Any) -> Any:
        return obj.persistent if type(obj) is _StorageKey else None

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Snapshot:
            return NotImplemented
        key = str(len(self.snapshots))
        self.snapshots.append(obj)
        layout: tuple[Any, ...] = (0, obj.shape, obj.stride, obj.requires_grad, OrderedDict())
        storage = _STORAGE_CLASSES.get(obj.dtype)
        if storage is None:
            record = _StorageKey(("storage", torch.UntypedStorage, key, "cpu", obj.nbytes))
            return torch._utils._rebuild_tensor_v3, (record, *layout, obj.dtype)
        record = _StorageKey(("storage", storage, key, "cpu", obj.nbytes // obj.dtype.itemsize))
        return torch._utils._rebuild_tensor_v2, (record, *layout)


def pickled(tree: Any) -> tuple[bytes, list[Snapshot]]:
    """The pickle of a tree, and its snapshots in the order of their records."""
    file = io.BytesIO()
    pickler = _TreePickler(file)
    pickler.dump(tree)
    return file.getvalue(), pickler.snapshots


def container(tree: Any) -> list[Bytes]:
    """The whole file as pieces for one vectored write; tensor bytes are referred to and not copied."""
    data, snapshots = pickled(tree)
    records: list[tuple[bytes, Bytes]] = [(b"archive/data.pkl", data)]
    records += [(b"archive/data/%d" % number, snapshot.memory) for number, snapshot in enumerate(snapshots)]
    pieces: list[Bytes] = [_PREFIX]
    directory = bytearray(_PREFIX_CENTRAL)
    offset = len(_PREFIX)
    for name, content in records:
        local, entry = _headers(name, len(content), zlib.crc32(content), offset)
        pieces += [local, content]
        directory += entry
        offset += len(local) + len(content)
    return [*pieces, directory, _end(len(records) + _PREFIX_RECORDS, len(directory), offset)]


def _headers(name: bytes, size: int, crc: int, offset: int) -> tuple[bytes, bytes]:
    """Local header (padded so that the content starts aligned) and central directory entry of one record."""
    zip64 = zip64_local = b""
    size32, offset32 = size, offset
    if size >= ZIP64_FROM or offset >= ZIP64_FROM:
        size32 = offset32 = 0xFFFFFFFF
        zip64 = struct.pack("<HHQQQ", _ZIP64_ID, 24, size, size, offset)
        zip64_local = struct.pack("<HHQQ", _ZIP64_ID, 16, size, size)
    start = offset + LOCAL.size + len(name) + len(zip64_local)
    padding = -(start + 4) % (BLOCK if size >= DIRECT_FROM else ALIGNMENT)
    extra = zip64_local + struct.pack("<HH", _PADDING_ID, padding) + b"\0" * padding
    local = LOCAL.pack(b"PK\3\4", _VERSION, 0, 0, 0, 0, crc, size32, size32, len(name), len(extra))
    sizes = (crc, size32, size32, len(name), len(zip64))
    entry = CENTRAL.pack(b"PK\1\2", _VERSION, _VERSION, 0, 0, 0, 0, *sizes, 0, 0, 0, 0, offset32)
    return local + name + extra, entry + name + zip64


def _end(count: int, size: int, offset: int) -> bytes:
    if count < 0xFFFF and offset + size < ZIP64_FROM:
        return END.pack(b"PK\5\6", 0, 0, count, count, size, offset, 0)
    end64 = END64.pack(b"PK\6\6", END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, size, offset)
    locator = LOCATOR64.pack(b"PK\6\7", 0, offset + size, 1)
    return end64 + locator + END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


def _constant_records() -> tuple[bytes, bytes, int]:
    """The records that every file starts with."""
    constants = {
        b"archive/.format_version": b"1",
        b"archive/.storage_alignment": str(ALIGNMENT).encode(),
        b"archive/byteorder": b"little",
        b"archive/version": b"3\n",
    }
    prefix, central = b"", b""
    for name, content in constants.items():
        local, entry = _headers(name, len(content), zlib.crc32(content), len(prefix))
        prefix += local + content
        central += entry
    return prefix, central, len(constants)


_PREFIX, _PREFIX_CENTRAL, _PREFIX_RECORDS = _constant_records()
