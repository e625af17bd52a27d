"""The pickle of a capture, interpreted by a machine that can build tensors and plain data and nothing else.

Stricter than `torch.load(weights_only=True)`: a few dozen opcodes, a fixed table of names, every tensor held against the
bytes that are there, and everything that a file makes is counted before it is made (docs/decisions/020).
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from op_tools.storage.archive import Archive
from op_tools.storage.constructors import (
    Constructor,
    Malformed,
    Storage,
    StorageClass,
    checked_key,
    find_global,
)
from op_tools.storage.errors import CaptureRefused, shown

MAX_OPERATIONS = 2_000_000
# Python hashes numbers modulo 2^61 - 1: a dict could be filled with larger ones that all fall into one slot, and each
# would be held against all before it.
LARGE_NUMBER, MAX_LARGE_NUMBERS = 1 << 60, 4096


class _Mark:
    pass


class Unpickler:
    """Interprets one pickle. Storages come from the archive, each record once."""

    def __init__(self, archive: Archive, data: bytes | bytearray) -> None:
        self._archive = archive
        self._data = bytes(data)
        self._position = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._storages: dict[str, Storage] = {}
        self._operations = 0
        self._bytes_made = 0
        self._items_made = 0
        self._large_numbers = 0

    def load(self) -> Any:
        try:
            return self._run()
        except Malformed as problem:
            raise self._refusal(str(problem)) from None
        except (IndexError, struct.error, UnicodeDecodeError):
            raise self._refusal("its pickle is cut short or broken") from None
        except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
            what = f"{type(error).__name__}: {str(error)[:100]}"
            raise self._refusal(f"its pickle does not make sense ({what})") from None

    def _refusal(self, problem: str) -> CaptureRefused:
        remedy = "Do not load it with anything else unless you trust where it comes from."
        return CaptureRefused(self._archive.path, problem, "tensors and plain data only", remedy)

    def _run(self) -> Any:
        data = self._data
        for self._operations in range(MAX_OPERATIONS):
            code = data[self._position]
            self._position += 1
            if code == 0x2E:  # STOP
                (result,) = self._stack
                return result
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise Malformed(f"uses the pickle operation {bytes([code])!r}, which a capture never needs")
            operation(self)
        raise Malformed(f"has more than {MAX_OPERATIONS} pickle operations")

    def take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise IndexError
        self._position, start = end, self._position
        return self._data[start:end]

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def line(self) -> str:
        end = self._data.index(b"\n", self._position)
        text = self._data[self._position : end].decode("utf-8")
        self._position = end + 1
        return text

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        return self._stack.pop()

    def since_mark(self) -> list[Any]:
        for n in range(len(self._stack) - 1, -1, -1):
            if self._stack[n] is _Mark:
                items = self._stack[n + 1 :]
                del self._stack[n:]
                return items
        raise IndexError

    def remember(self, key: int) -> None:
        self._memo[key] = self._stack[-1]

    def recall(self, key: int) -> None:
        self._stack.append(self._memo[key])

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Constructor) or type(arguments) is not tuple:
            raise Malformed("calls something that is not a constructor of plain data")
        made = function.build(*arguments)
        # Each is written with a text or a list of its own. More than was read comes from one that is used many times.
        if type(made) is bytes:
            self._bytes_made += len(made)
        elif type(made) in (set, OrderedDict):
            self._items_made += len(made)
        if self._bytes_made > self._position or self._items_made > self._operations:
            raise Malformed("makes more values than it has")
        self.push(made)

    def storage(self) -> None:
        key = self.pop()
        if type(key) is not tuple or len(key) != 5:
            raise Malformed("has a malformed reference to tensor bytes")
        word, kind, name, _, count = key
        if word != "storage" or not isinstance(kind, StorageClass):
            raise Malformed("has a malformed reference to tensor bytes")
        if not isinstance(name, str) or not name.isdecimal() or len(name) > 10:
            raise Malformed(f"refers to the tensor record {shown(name)}")
        itemsize = 1 if kind.dtype is None else kind.dtype.itemsize
        record = self._archive.records.get(f"data/{name}")
        present = record.size if record is not None else 0
        if type(count) is not int or count < 0 or count * itemsize > present:
            declared = f"declares {shown(count)} elements for the record data/{name}"
            raise Malformed(f"{declared}, which has {present} bytes")
        found = self._storages.get(name)
        if found is None:
            content = self._archive.read(f"data/{name}")
            found = self._storages[name] = Storage(content, kind.dtype)
        self.push(found if found.dtype == kind.dtype else Storage(found.content, kind.dtype))

    def set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) not in (dict, OrderedDict) or len(items) % 2:
            raise Malformed("fills something that is not a dict")
        for n in range(0, len(items), 2):
            target[checked_key(items[n])] = items[n + 1]

    def append_items(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise Malformed("appends to something that is not a list")
        self._stack[-1].extend(items)

    def build(self) -> None:
        """Attributes of an OrderedDict (torch writes `_metadata`): read and left out."""
        self.pop()
        if type(self._stack[-1]) is not OrderedDict:
            raise Malformed("sets attributes of an object")

    def last(self, count: int) -> None:
        items = self._stack[-count:]
        if len(items) != count:
            raise IndexError
        del self._stack[-count:]
        self.push(tuple(items))

    def protocol(self) -> None:
        version = self.take(1)[0]
        if version != 2:
            raise Malformed(f"is a pickle of protocol {version} and not 2")

    def long(self) -> None:
        value = int.from_bytes(self.take(self.take(1)[0]), "little", signed=True)
        self._large_numbers += abs(value) >= LARGE_NUMBER
        if self._large_numbers > MAX_LARGE_NUMBERS:
            raise Malformed(f"holds more than {MAX_LARGE_NUMBERS} numbers beyond 2^60")
        self.push(value)


_OPERATIONS: dict[int, Callable[[Unpickler], None]] = {
    0x80: Unpickler.protocol,
    ord("("): lambda m: m.push(_Mark),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: m.push(m.take(1)[0]),
    ord("M"): lambda m: m.push(m.number("<H")),
    ord("J"): lambda m: m.push(m.number("<i")),
    ord("G"): lambda m: m.push(m.number(">d")),
    0x8A: Unpickler.long,
    ord("X"): lambda m: m.push(m.take(m.number("<I")).decode("utf-8")),
    ord("}"): lambda m: m.push({}),
    ord("]"): lambda m: m.push([]),
    ord(")"): lambda m: m.push(()),
    ord("t"): lambda m: m.push(tuple(m.since_mark())),
    0x85: lambda m: m.last(1),
    0x86: lambda m: m.last(2),
    0x87: lambda m: m.last(3),
    ord("q"): lambda m: m.remember(m.take(1)[0]),
    ord("r"): lambda m: m.remember(m.number("<I")),
    ord("h"): lambda m: m.recall(m.take(1)[0]),
    ord("j"): lambda m: m.recall(m.number("<I")),
    ord("s"): lambda m: m.set_items([m.pop(), m.pop()][::-1]),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    ord("a"): lambda m: m.append_items([m.pop()]),
    ord("e"): lambda m: m.append_items(m.since_mark()),
    ord("c"): lambda m: m.push(find_global(m.line(), m.line())),
    ord("R"): Unpickler.reduce,
    ord("Q"): Unpickler.storage,
    ord("b"): Unpickler.build,
}
