"""Captures made to do harm, byte by byte; test_hostile_captures.py shows that none of them does."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HASH = "0123456789abcdef" * 2


def zipped(path: Path, pickled: bytes, data: bytes = b"\0" * 64, **records: bytes) -> Path:
    """A container like torch's, with any pickle inside."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/data/0", data)
        archive.writestr("archive/version", b"3\n")
        for name, content in records.items():
            archive.writestr(f"archive/{name}", content)
    return path


def capture_of(value: bytes) -> bytes:
    """A pickle of {"args": (<value>,), "kwargs": {}} with the value's own operations in place."""
    return b"\x80\x02}(X\x04\0\0\0args" + value + b"\x85X\x06\0\0\0kwargs}u."


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    raw = value.to_bytes(16, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(
    count: int = 16,
    offset: int = 0,
    shape: tuple[int, ...] = (4, 4),
    stride: tuple[int, ...] = (4, 1),
    key: str = "0",
    storage: bytes = b"ctorch\nFloatStorage\n",
) -> bytes:
    """The operations that torch writes for a tensor over the record data/0 (64 bytes)."""
    persistent = b"(" + text("storage") + storage + text(key) + text("cpu") + number(count) + b"tQ"
    rest = number(offset) + numbers(shape) + numbers(stride) + b"\x89" + b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + persistent + rest + b"tR"


def reference(**changes: Any) -> dict[str, Any]:
    """A blob reference as the store writes it, with something wrong in it."""
    right = {
        "__op_tools__": "tensor",
        "hash": HASH,
        "pack": "",
        "offset": 0,
        "nbytes": 16,
        "dtype": "float32",
        "shape": (4,),
        "stride": (1,),
        "requires_grad": False,
    }
    return right | changes


class Marker:
    """Pickles to a call that would leave a file behind."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def pickled_with(value: Any, protocol: int = 2) -> bytes:
    return pickle.dumps({"args": (value,), "kwargs": {}}, protocol=protocol)


def call(module: str, name: str, *arguments: str) -> bytes:
    """Operations that call a function with texts."""
    return f"c{module}\n{name}\n(".encode() + b"".join(map(text, arguments)) + b"tR"


CODE = "open('OWNED', 'w')"
CODE_PICKLES: dict[str, bytes] = {
    "os.system": pickled_with(Marker(os.system, "touch OWNED")),
    "posix.system": capture_of(call("posix", "system", "touch OWNED")),
    "builtins.eval": pickled_with(Marker(eval, CODE)),
    "builtins.exec": pickled_with(Marker(exec, CODE)),
    "builtins.open": pickled_with(Marker(open, "OWNED", "w")),
    "subprocess": pickled_with(Marker(subprocess.Popen, ["touch", "OWNED"])),
    "getattr chain": capture_of(call("builtins", "getattr", "os", "system")),
    "__import__": capture_of(call("builtins", "__import__", "os")),
    "importlib": capture_of(call("importlib", "import_module", "antigravity")),
    "torch.load": capture_of(call("torch", "load", "OWNED")),
    "torch.hub": capture_of(call("torch.hub", "load", "x", "y")),
    "from_file": capture_of(call("torch", "from_file", "OWNED")),
    "load_library": capture_of(call("torch.ops", "load_library", "OWNED")),
    "torch.serialization internals": capture_of(call("torch.serialization", "_load", "OWNED")),
    "dotted name": capture_of(call("torch", "os.system", "touch OWNED")),
    "module in a module": capture_of(call("torch._utils", "sys.modules", "x")),
    "instance opcode": b"\x80\x02(" + text("touch OWNED") + b"ios\nsystem\n.",
    "object opcode": b"\x80\x02(cos\nsystem\n" + text("touch OWNED") + b"o.",
    "newobj opcode": b"\x80\x02csubprocess\nPopen\n" + text("touch OWNED") + b"\x85\x81.",
    "stack global": pickled_with(Marker(os.system, "touch OWNED"), protocol=4),
    "extension opcode": b"\x80\x02\x82\x01.",
    "text persistent id": b"\x80\x02Pfile\n.",
    "build on a dict": capture_of(b"}" + text("a") + text("b") + b"\x86b"),
    "calls a tensor": capture_of(tensor() + b")R"),
    "calls a text": capture_of(text("os.system") + b")R"),
    "calls a storage class": capture_of(b"ctorch\nFloatStorage\n)R"),
    "vendor rebuild without storage": capture_of(call("os", "_rebuild_x_tensor", "a", "b", "c", "d", "e")),
    "codec": capture_of(call("_codecs", "encode", "x", "rot13")),
}

TENSOR_PICKLES: dict[str, bytes] = {
    "more elements than bytes": capture_of(tensor(count=17)),
    "a huge element count": capture_of(tensor(count=1 << 60)),
    "a negative element count": capture_of(tensor(count=-1)),
    "shape beyond the storage": capture_of(tensor(shape=(5, 4))),
    "stride beyond the storage": capture_of(tensor(stride=(5, 1))),
    "offset beyond the storage": capture_of(tensor(offset=1)),
    "a negative offset": capture_of(tensor(offset=-4)),
    "a negative stride": capture_of(tensor(offset=15, shape=(16,), stride=(-1,))),
    "a negative extent": capture_of(tensor(shape=(-1, 4))),
    "extents whose product overflows": capture_of(tensor(shape=(1 << 40, 1 << 40), stride=(0, 0))),
    "an absurd expansion": capture_of(tensor(shape=(1 << 45,), stride=(0,))),
    "dimensions without strides": capture_of(tensor(stride=(1,))),
    "hundreds of dimensions": capture_of(tensor(shape=(1,) * 300, stride=(1,) * 300)),
    "a record that is not there": capture_of(tensor(key="9")),
    "a record with a path": capture_of(tensor(key="../../../etc/passwd")),
    "a storage of no known class": capture_of(tensor(storage=b"ctorch\nnn\n")),
    "an untyped storage for a typed tensor": capture_of(tensor(storage=b"ctorch.storage\nUntypedStorage\n")),
}

TREE_PICKLES: dict[str, bytes] = {
    "no args": pickle.dumps({"kwargs": {}}, protocol=2),
    "args of the wrong kind": pickle.dumps({"args": 3, "kwargs": {}}, protocol=2),
    "kwargs of the wrong kind": pickle.dumps({"args": (), "kwargs": []}, protocol=2),
    "kwargs that turn into something else": pickle.dumps(
        {"args": (), "kwargs": {"__op_tools__": "ellipsis"}}, protocol=2
    ),
    "header of the wrong kind": pickle.dumps({"args": (), "kwargs": {}, "__op_tools__": []}, protocol=2),
    "unknown tag": pickled_with({"__op_tools__": "callable", "name": "os.system"}),
    "tag that is a list": pickled_with({"__op_tools__": ["slice"]}),
    "broken slice": pickled_with({"__op_tools__": "slice"}),
    "named tuple with code for a name": pickled_with(
        {"__op_tools__": "namedtuple", "type": "X", "fields": ["a=open('OWNED','w')"], "items": [1]}
    ),
    "layout that is something else": pickled_with({"__op_tools__": "layout", "name": "os"}),
    "sparse with indices out of bounds": pickled_with(
        {"__op_tools__": "sparse", "layout": "sparse_coo", "shape": (2,), "indices": 1, "values": 2}
    ),
    "range of texts": pickled_with({"__op_tools__": "range", "start": "a", "stop": "b", "step": "c"}),
    "unhashable key": pickled_with({"__op_tools__": "dict", "items": [([], 1)]}),
    "nested a thousand times": b"\x80\x02" + b"]" * 1000 + b"a" * 999 + b".",
    "a list that contains itself": b"\x80\x02]q\0h\0a.",
    "memo index that is not there": b"\x80\x02j\xff\xff\xff\xff.",
    "text longer than the file": b"\x80\x02X\xff\xff\xff\xff.",
    "nothing on the stack": b"\x80\x02.",
    "no end": b"\x80\x02N",
    "empty pickle": b"",
    "broken utf-8": b"\x80\x02X\x02\0\0\0\xff\xfe.",
    "bytes with a length of 8 bytes": b"\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
}


def laughs() -> bytes:
    """Thirty lists, each with the one before ten times: 10^30 values in some hundred bytes."""
    code = b"\x80\x02]q\0"
    for level in range(30):
        code += b"](" + b"h%c" % level * 10 + b"eq%c" % (level + 1)
    return code + b"."


TREE_PICKLES["billion laughs"] = laughs()

BLOB_REFERENCES: dict[str, dict[str, Any]] = {
    "traversal in the hash": reference(hash="../../../../etc/passwd"),
    "traversal in the pack": reference(pack="../../../../etc/passwd"),
    "pack with a folder": reference(pack="x/y.pack"),
    "hash of the wrong length": reference(hash="ab"),
    "hash with a line end": reference(hash=HASH + "\n"),
    "hash that is not there": reference(),
    "negative offset": reference(offset=-1, pack="a.pack"),
    "huge size": reference(nbytes=1 << 60, pack="a.pack"),
    "size of the wrong kind": reference(nbytes=2.5),
    "dtype that is none": reference(dtype="os"),
    "quantized dtype": reference(dtype="qint8"),
    "shape beyond the bytes": reference(nbytes=0, shape=(4,)),
    "linked blob": reference(hash="a" * 32),
    "linked pack": reference(pack="linked.pack"),
    "blob with other bytes": reference(hash="b" * 32),
    "pack too short": reference(pack="a.pack", nbytes=1000),
}


def with_bytes(content: bytes, position: int, value: bytes) -> bytes:
    return content[:position] + value + content[position + len(value) :]


class Layout:
    """Sound bytes and the places in them that matter."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.end = len(content) - 22
        self.directory = struct.unpack_from("<I", content, self.end + 16)[0]
        self.name = content.index(b"archive/data/0", self.directory)
        self.entry = self.name - 46
        self.second = content.index(b"PK\1\2", self.directory + 4)
        self.values = content.index(struct.pack("<4f", 7, 8, 9, 10))

    def put(self, position: int, value: bytes) -> bytes:
        return with_bytes(self.content, position, value)


CONTAINERS: dict[str, Callable[[Layout], bytes]] = {
    "nothing": lambda f: b"",
    "one byte": lambda f: b"P",
    "text": lambda f: b"hello world, this is not a capture at all",
    "appended": lambda f: f.content + b"x",
    "zip comment": lambda f: f.put(len(f.content) - 2, b"\1\0") + b"c",
    "too many records": lambda f: f.put(f.end + 8, b"\xfe\xff\xfe\xff"),
    "too few records": lambda f: f.put(f.end + 8, b"\1\0\1\0"),
    "directory elsewhere": lambda f: f.put(f.end + 16, struct.pack("<I", 0)),
    "directory behind the end": lambda f: f.put(f.end + 16, b"\xff\xff\xff\x7f"),
    "huge directory": lambda f: f.put(f.end + 12, b"\xff\xff\xff\x7f"),
    "huge record": lambda f: f.put(f.entry + 20, struct.pack("<II", 1 << 31, 1 << 31)),
    "record in another place": lambda f: f.put(f.entry + 42, struct.pack("<I", 0)),
    "record behind the end": lambda f: f.put(f.entry + 42, b"\xf0\xff\xff\x7f"),
    "64-bit record without sizes": lambda f: f.put(f.entry + 20, b"\xff" * 8),
    "compressed": lambda f: f.put(f.entry + 10, b"\x08\0"),
    "encrypted": lambda f: f.put(f.entry + 8, b"\x01\0"),
    "parent folder": lambda f: f.put(f.name, b"../hive/data/0"),
    "absolute name": lambda f: f.put(f.name, b"/rchive/data/0"),
    "backslash": lambda f: f.put(f.name, b"archive\\data/0"),
    "same name twice": lambda f: f.put(f.name, b"archive/data.p"),
    "name that is not text": lambda f: f.put(f.name, b"archive\xff\xfe\xff/0a"),
    "directory entry broken": lambda f: f.put(f.second, b"XX"),
    "checksum": lambda f: f.put(f.values, b"\xff"),
}


def chain(levels: int, first: bytes = b")") -> bytes:
    """A tuple of the one before twice, and so on: 2^levels values, and as many steps to hash or to print it."""
    return first + b"q\x01" + b"h\x01\x86q\x01" * levels


def span(count: int) -> bytes:
    """A range: a few bytes, whatever its length."""
    return b"c__builtin__\nxrange\n" + number(count) + b"\x85R"


def tagged(kind: str, **parts: bytes) -> bytes:
    """A dict of op_tools' own with operations for values."""
    items = b"".join(text(name) + value for name, value in parts.items())
    return b"}(" + text("__op_tools__") + text(kind) + items + b"u"


def made_by(module: str, name: str, *arguments: bytes) -> bytes:
    return f"c{module}\n{name}\n(".encode() + b"".join(arguments) + b"tR"


def tensor_with(
    offset: bytes = b"K\0", shape: bytes = b")", stride: bytes = b")", count: bytes = b"K\x10"
) -> bytes:
    """Like tensor(), with operations in place of the numbers."""
    persistent = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + count + b"tQ"
    return made_by("torch._utils", "_rebuild_tensor_v2", persistent, offset, shape, stride, b"\x89", b"N")


def blob_with(**changes: bytes) -> bytes:
    """A blob reference with operations in place of some of its values."""
    right = {
        "hash": text(HASH),
        "pack": text(""),
        "offset": b"K\0",
        "nbytes": b"K\0",
        "dtype": text("float32"),
        "shape": b"K\0\x85",
        "stride": b"K\x01\x85",
    }
    return tagged("tensor", **(right | changes))


def indices(count: int) -> bytes:
    """Eight bytes that show any number of indices."""
    return tensor(2, 0, (1, count), (0, 0), storage=b"ctorch\nLongStorage\n")


def values(count: int) -> bytes:
    return tensor(1, 0, (count,), (0,))


# Long enough to show in time or memory where it is not refused, short enough that a failing test ends.
LONG = 20_000_000
TALL = 29  # to hash
WIDE = 25  # to print
MANY = b"](" + b"N" * 100_000 + b"e"
COO = b"ctorch.serialization\n_get_layout\n" + text("torch.sparse_coo") + b"\x85R"
CSR = b"ctorch.serialization\n_get_layout\n" + text("torch.sparse_csr") + b"\x85R"

WIDE_TEXTS = chain(16, text("x" * 5000))  # few enough values to be read, 330 MB of text
TAGGED_PARTS = {
    "type": text("X"),
    "repr": text("x"),
    "name": text("x"),
    "state": tensor(),
    "device": text("cpu"),
    "layout": text("sparse_coo"),
    "fields": b"]",
    "items": b"]",
}


# Few bytes that would cost much memory or time.
def numbers_of_one_hash(count: int, value: bytes = b"") -> bytes:
    """Multiples of the modulus of Python's hash of numbers, each followed by a value."""
    return b"".join(
        b"\x8a\x0a" + (n * ((1 << 61) - 1)).to_bytes(10, "little") + value for n in range(1, count + 1)
    )


COSTLY_PICKLES: dict[str, bytes] = {
    # Ranges
    "size of a range": capture_of(made_by("torch", "Size", span(LONG))),
    "size of a range that no machine holds": capture_of(made_by("torch", "Size", span(1 << 62))),
    "shape that is a range": capture_of(tensor_with(shape=span(LONG))),
    "return type of a range": capture_of(made_by("torch.return_types", "max", span(LONG))),
    "set of a range": capture_of(made_by("__builtin__", "set", span(LONG))),
    "ordered dict of a range": capture_of(made_by("collections", "OrderedDict", span(LONG))),
    "sparse of a range": capture_of(
        made_by("torch._utils", "_rebuild_sparse_tensor", COO, b"(" + tensor() * 2 + span(LONG) + b"t")
    ),
    "compressed of a range": capture_of(
        made_by("torch._utils", "_rebuild_sparse_tensor", CSR, b"(" + tensor() * 3 + span(LONG) + b"t")
    ),
    "tagged set of a range": capture_of(tagged("set", items=span(LONG))),
    "tagged frozenset of a range": capture_of(tagged("frozenset", items=span(LONG))),
    "tagged return type of a range": capture_of(tagged("return_type", name=text("max"), items=span(LONG))),
    "tagged tuple of a range": capture_of(
        tagged("namedtuple", type=text("X"), fields=b"]", items=span(LONG))
    ),
    "tagged tuple with a range of names": capture_of(
        tagged("namedtuple", type=text("X"), fields=span(LONG), items=b"]")
    ),
    "tagged sparse with a range for a shape": capture_of(
        tagged("sparse", layout=text("sparse_coo"), shape=span(LONG), indices=tensor(), values=tensor())
    ),
    # Hashing
    "tall key": capture_of(b"}" + chain(TALL) + b"Ns"),
    "tall keys": capture_of(b"}(" + chain(TALL) + b"Nu"),
    "tall key in a tuple": capture_of(b"}" + chain(TALL) + b"\x85Ns"),
    "tall key of an ordered dict": capture_of(b"ccollections\nOrderedDict\n)R" + chain(TALL) + b"Ns"),
    "tall key in a list of pairs": capture_of(
        made_by("collections", "OrderedDict", b"]" + chain(TALL) + b"N\x86a")
    ),
    "tall set item": capture_of(made_by("__builtin__", "set", b"]" + chain(TALL) + b"a")),
    "tall key of a tagged dict": capture_of(tagged("dict", items=b"]" + chain(TALL) + b"N\x86a")),
    "tall key made of slices": capture_of(
        tagged(
            "dict",
            items=b"]Nq\x01"
            + made_by("__builtin__", "slice", b"h\x01h\x01")
            + (b"q\x01" + made_by("__builtin__", "slice", b"h\x01h\x01")) * TALL
            + b"N\x86a",
        )
    ),
    "keys that share one hash": capture_of(b"}(" + numbers_of_one_hash(40_000, b"N") + b"u"),
    "set items that share one hash": capture_of(
        made_by("__builtin__", "set", b"](" + numbers_of_one_hash(40_000) + b"e")
    ),
    "key of many items": capture_of(b"}(" + b"N" * 100_000 + b"tNs"),
    "key of many characters": capture_of(b"}" + text("x" * 100_000) + b"Ns"),
    # Texts of messages
    "offset that is wide": capture_of(tensor_with(offset=chain(WIDE))),
    "shape that is wide": capture_of(tensor_with(shape=chain(WIDE))),
    "stride that is wide": capture_of(tensor_with(stride=chain(WIDE) + b"\x85")),
    "shape with many items": capture_of(
        tensor_with(shape=b"(" + text("x" * 1_000_000) + b"q\x02" + b"h\x02" * 99 + b"t")
    ),
    "element count that is wide": capture_of(tensor_with(count=chain(WIDE))),
    "record that is wide": capture_of(
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + chain(WIDE) + text("cpu") + b"K\x01tQ"
    ),
    "layout that is wide": capture_of(made_by("torch.serialization", "_get_layout", chain(WIDE))),
    "device that is wide": capture_of(made_by("torch", "device", chain(WIDE))),
    "format that is wide": b"\x80\x02}("
    + text("args")
    + b")"
    + text("__op_tools__")
    + (b"}(" + text("format") + WIDE_TEXTS + b"uu."),
    **{
        f"blob with a wide {part}": capture_of(blob_with(**{part: WIDE_TEXTS}))
        for part in ("hash", "pack", "offset", "nbytes", "dtype", "shape", "stride")
    },
    **{
        f"{kind} with a wide {part}": capture_of(tagged(kind, **(TAGGED_PARTS | {part: WIDE_TEXTS})))
        for kind, part in (
            ("opaque", "type"),
            ("opaque", "repr"),
            ("enum", "type"),
            ("enum", "name"),
            ("layout", "name"),
            ("generator", "device"),
            ("sparse", "layout"),
            ("namedtuple", "type"),
            ("namedtuple", "fields"),
        )
    },
    "wide tag": capture_of(b"}" + text("__op_tools__") + WIDE_TEXTS + b"s"),
    # One thing many times
    "a long list many times": capture_of(b"(" + MANY + b"q\0" + b"h\0" * 2000 + b"t"),
    "a long text as bytes many times": capture_of(
        b"("
        + text("x" * 100_000)
        + b"q\0c_codecs\nencode\nq\x01"
        + (b"h\x01h\0" + text("latin1") + b"\x86R") * 2000
        + b"t"
    ),
    "a long list as sets many times": capture_of(
        b"(]("
        + b"".join(map(number, range(10_000)))
        + b"eq\0c__builtin__\nset\nq\x01"
        + b"h\x01h\0\x85R" * 1000
        + b"t"
    ),
    "expanded sparse tensor": capture_of(
        made_by(
            "torch._utils", "_rebuild_sparse_tensor", COO, b"(" + indices(LONG) + values(LONG) + b"K\x05\x85t"
        )
    ),
    "expanded tagged sparse tensor": capture_of(
        tagged(
            "sparse",
            layout=text("sparse_coo"),
            shape=b"K\x05\x85",
            indices=indices(LONG),
            values=values(LONG),
        )
    ),
}
