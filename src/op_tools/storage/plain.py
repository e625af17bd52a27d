"""Any call argument as plain data, and back.

Plain data is what `torch.load(weights_only=True)` takes as it is: None, bool, int, float, complex, str, bytes, list,
tuple, dict, tensors, dtype, device, Size. Everything else becomes a tagged dict `{"__op_tools__": kind, ...}`.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from op_tools.storage.constructors import Malformed, checked_key, sparse_over
from op_tools.storage.errors import shown
from op_tools.storage.snapshot import LAYOUT_PARTS, TAG

# Deeper than any call's arguments; also what ends a list that contains itself.
MAX_DEPTH = 16
MAX_REPR = 200
# Longer integers need a pickle opcode that torch's safe loader does not know.
MAX_INT_BITS = 2000

_AS_IS = frozenset({type(None), bool, float, complex, torch.dtype, torch.device, torch.Size})
_ENUM_LIKE = {torch.memory_format: "memory_format", torch.layout: "layout", torch.qscheme: "qscheme"}


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that could not be saved: its type and a short text remain. Replay refuses calls that hold one."""

    type_name: str
    text: str
    details: dict[str, Any] = field(default_factory=dict, compare=False)


def plain(value: Any, *, tensor: Callable[[torch.Tensor], Any], depth: int = 0) -> Any:
    """Plain data for `value`; each tensor becomes what `tensor` returns for it. Never raises."""
    kind = type(value)
    if kind in _AS_IS:
        return value
    if kind is int:
        return value if value.bit_length() < MAX_INT_BITS else opaque(value)
    if kind is str:
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if depth >= MAX_DEPTH:
        return {TAG: "opaque", "type": _type_name(value), "repr": "nested too deeply"}
    if kind is tuple:
        return tuple([plain(item, tensor=tensor, depth=depth + 1) for item in value])
    if kind is list:
        return [plain(item, tensor=tensor, depth=depth + 1) for item in value]
    if kind is dict or kind is OrderedDict:
        return _plain_dict(value, tensor, depth)
    try:
        return _plain_rare(value, tensor, depth)
    except (
        Exception
    ):  # an object with a hostile __repr__, __iter__ or __class__: it is not worth the training
        return {TAG: "opaque", "type": _type_name(value), "repr": "unreadable"}


def _plain_dict(value: Mapping[Any, Any], tensor: Callable[[torch.Tensor], Any], depth: int) -> Any:
    # A user's dict with our tag as a key must not be mistaken for one of ours.
    if TAG not in value and all(type(key) is str and key.isascii() for key in value):
        return {key: plain(item, tensor=tensor, depth=depth + 1) for key, item in value.items()}
    pairs = [
        (plain(key, tensor=tensor, depth=depth + 1), plain(item, tensor=tensor, depth=depth + 1))
        for key, item in value.items()
    ]
    return {TAG: "dict", "items": pairs}


def _plain_rare(value: Any, tensor: Callable[[torch.Tensor], Any], depth: int) -> Any:
    def inner(item: Any) -> Any:
        return plain(item, tensor=tensor, depth=depth + 1)

    if isinstance(value, enum.Enum):
        kind = type(value)
        return {TAG: "enum", "type": f"{kind.__module__}.{kind.__qualname__}", "name": value.name}
    if isinstance(value, slice | range):
        ends = {end: inner(getattr(value, end)) for end in ("start", "stop", "step")}
        return {TAG: type(value).__name__, **ends}
    if value is Ellipsis:
        return {TAG: "ellipsis"}
    for like, name in _ENUM_LIKE.items():
        if isinstance(value, like):
            return {TAG: name, "name": str(value).removeprefix("torch.")}
    if isinstance(value, tuple):
        return _plain_tuple(value, inner)
    if isinstance(value, list):
        return [inner(item) for item in value]
    if isinstance(value, bytes | bytearray):
        # No bytes at all are pickled by a name that torch's safe loader does not know.
        return bytes(value) if value else {TAG: "no_bytes"}
    if isinstance(value, set | frozenset):
        return {TAG: type(value).__name__, "items": [inner(item) for item in value]}
    if isinstance(value, dict):
        return _plain_dict(value, tensor, depth)
    if isinstance(value, torch.Generator):
        return {TAG: "generator", "device": str(value.device), "state": tensor(value.get_state())}
    return _plain_number(value, tensor)


def _plain_tuple(value: tuple[Any, ...], inner: Callable[[Any], Any]) -> Any:
    kind = type(value)
    items = [inner(item) for item in value]
    if kind.__module__ == "torch.return_types":
        return {TAG: "return_type", "name": kind.__name__, "items": items}
    names = getattr(kind, "_fields", None)
    if names is not None and len(names) == len(items):
        return {TAG: "namedtuple", "type": kind.__name__, "fields": list(names), "items": items}
    return tuple(items)


def _plain_number(value: Any, tensor: Callable[[torch.Tensor], Any]) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
            return {TAG: "ndarray", "tensor": tensor(torch.from_numpy(numpy.ascontiguousarray(value)))}
        if isinstance(value, numpy.generic):
            item = value.item()
            return item if type(item) in (bool, int, float, complex, str, bytes) else opaque(value)
    for base in (int, float, str):  # their subclasses: the number is what an operator sees
        if isinstance(value, base):
            return plain(base(value), tensor=tensor)
    return opaque(value)


def opaque(value: Any) -> dict[str, Any]:
    """The tagged dict of something that cannot be saved: replay shows it and refuses the call."""
    if isinstance(value, FunctionType | MethodType | type | ModuleType) or callable(value):
        text = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        module = getattr(value, "__module__", None)
        if isinstance(text, str):
            return {TAG: "opaque", "type": _type_name(value), "repr": f"{module}.{text}" if module else text}
    try:
        text = repr(value)
    except Exception:
        text = "unreadable"
    text = text if len(text) <= MAX_REPR else text[:MAX_REPR] + "..."
    return {TAG: "opaque", "type": _type_name(value), "repr": text.encode("utf-8", "replace").decode()}


def _type_name(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def restore(value: Any) -> Any:
    """The inverse of plain(): tagged dicts become the objects they describe, what cannot be made an Opaque.

    Only data and a fixed list of torch's own types are built; no name from a file is ever imported. Tensors that occur
    more than once stay one object. Raises ValueError for a tag that contradicts itself.
    """
    kind = type(value)
    if kind is tuple:
        return tuple([restore(item) for item in value])
    if kind is list:
        return [restore(item) for item in value]
    if kind is dict or kind is OrderedDict:
        tag = value.get(TAG)
        if tag is None:
            return {key: restore(item) for key, item in value.items()}
        if not isinstance(tag, str) or tag not in _RESTORERS:
            raise ValueError(f"unknown kind of value {shown(tag)}")
        try:
            return _RESTORERS[tag](value)
        except KeyError:  # its text is the key, of any length
            raise ValueError(f"a value of kind {tag!r} lacks something or names what is not there") from None
        except (Malformed, TypeError, AttributeError, RuntimeError, IndexError, OverflowError) as error:
            problem = f"{type(error).__name__}: {str(error)[:100]}"
            raise ValueError(f"a value of kind {tag!r} is malformed ({problem})") from error
    return value


def _restore_named(names: Mapping[str, Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda tree: names[tree["name"]]


def _listed(value: Any) -> list[Any] | tuple[Any, ...]:
    """Only what was counted when the file was read: a range of any length takes a few bytes."""
    if type(value) not in (list, tuple):
        raise ValueError(f"a list of values is {shown(value)}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"a name is {shown(value)}")
    return value


def _key(value: Any) -> Any:
    """A key or an item of a set; numbers are checked as those of plain dicts are."""
    restored = restore(value)
    return checked_key(restored) if isinstance(restored, complex) else restored


def _restore_return_type(tree: dict[str, Any]) -> Any:
    items = [restore(item) for item in _listed(tree["items"])]
    name = tree["name"]
    kind = vars(torch.return_types).get(name) if isinstance(name, str) else None
    if not (isinstance(kind, type) and issubclass(kind, tuple)):
        return tuple(items)  # a newer torch had one more return type: its items are what counts
    return kind(items)


def _restore_namedtuple(tree: dict[str, Any]) -> Any:
    names, items = _listed(tree["fields"]), [restore(item) for item in _listed(tree["items"])]
    if len(names) != len(items) or len(names) > 256:
        raise ValueError(f"a named tuple has {len(names)} names and {len(items)} values")
    for name in (tree["type"], *names):
        # namedtuple() builds its class from source text; it checks the names too, but this must not rest on that.
        if not (isinstance(name, str) and name.isidentifier() and len(name) <= 100):
            raise ValueError(f"a named tuple has the field {shown(name)}")
    return _named_tuple(tree["type"], tuple(names))(*items)


@functools.lru_cache(maxsize=256)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """Making a class takes 50 us; a file may hold many values of one."""
    return namedtuple(name, fields)  # type: ignore[misc]


def _restore_enum(tree: dict[str, Any]) -> Any:
    """Only enums of torch itself that are loaded already; others stay a description."""
    full, member = _text(tree["type"]), _text(tree["name"])
    module, _, name = full.rpartition(".")
    loaded = sys.modules.get(module) if module.startswith("torch") else None
    kind = vars(loaded).get(name) if loaded is not None else None
    if isinstance(kind, enum.EnumMeta) and member in kind.__members__:
        return kind[member]
    return Opaque(full[:MAX_REPR], member[:MAX_REPR])


def _restore_generator(tree: dict[str, Any]) -> Any:
    state, device = restore(tree["state"]), _text(tree["device"])
    try:
        generator = torch.Generator(device=device)
        generator.set_state(state)
    except Exception:  # another machine: the device it belonged to is not here
        return Opaque("torch._C.Generator", f"of {device[:60]}", {"state": state})
    return generator


def _restore_sparse(tree: dict[str, Any]) -> Any:
    layout = _text(tree["layout"])
    parts = [restore(tree[part]) for part in LAYOUT_PARTS[layout]]
    made = sparse_over(_LAYOUTS[layout], parts, tree["shape"])
    # The flag decides which path an operator takes, so it is part of what was captured.
    if layout == "sparse_coo" and tree.get("coalesced") and _is_sorted(parts[0]):
        return made._coalesced_(True)
    return made


def _is_sorted(indices: torch.Tensor) -> bool:
    """Whether coordinates strictly increase, i.e. a tensor that says it is coalesced really is."""
    if indices.shape[1] < 2:
        return True
    later, earlier = indices[:, 1:], indices[:, :-1]
    greater = torch.zeros(later.shape[1], dtype=torch.bool)
    equal = torch.ones(later.shape[1], dtype=torch.bool)
    for row in range(indices.shape[0]):
        greater |= equal & (later[row] > earlier[row])
        equal &= later[row] == earlier[row]
    return bool(greater.all())


def _restore_opaque(tree: dict[str, Any]) -> Opaque:
    details = {key: item for key, item in tree.items() if key not in (TAG, "type", "repr")}
    return Opaque(_text(tree["type"])[:MAX_REPR], _text(tree["repr"])[: MAX_REPR + 3], details)


def _all_of(kind: type) -> dict[str, Any]:
    return {str(x).removeprefix("torch."): x for x in vars(torch).values() if isinstance(x, kind)}


_LAYOUTS = _all_of(torch.layout)
_RESTORERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dict": lambda tree: {_key(key): restore(item) for key, item in _listed(tree["items"])},
    "slice": lambda tree: slice(restore(tree["start"]), restore(tree["stop"]), restore(tree["step"])),
    "ellipsis": lambda tree: Ellipsis,
    "no_bytes": lambda tree: b"",
    "memory_format": _restore_named(_all_of(torch.memory_format)),
    "layout": _restore_named(_LAYOUTS),
    "qscheme": _restore_named(_all_of(torch.qscheme)),
    "set": lambda tree: {_key(item) for item in _listed(tree["items"])},
    "frozenset": lambda tree: frozenset(_key(item) for item in _listed(tree["items"])),
    "range": lambda tree: range(tree["start"], tree["stop"], tree["step"]),
    "return_type": _restore_return_type,
    "namedtuple": _restore_namedtuple,
    "enum": _restore_enum,
    "generator": _restore_generator,
    "ndarray": lambda tree: restore(tree["tensor"]).numpy(),
    "sparse": _restore_sparse,
    "opaque": _restore_opaque,
}
