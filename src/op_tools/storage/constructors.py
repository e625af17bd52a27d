"""The few things that the pickle of a capture may ask for, each made here from checked numbers.

Names in a file are looked up in fixed tables and never imported; what is called are the functions of this file.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from op_tools.storage.errors import shown

MAX_DIMENSIONS = 64
# More than any of torch.return_types has.
MAX_RETURNED = 64
MAX_KEY_ITEMS = 64
MAX_KEY_LENGTH = 1 << 16
# What a component of a sparse tensor may show beyond its bytes: torch walks, and may copy, all that it shows.
MAX_SPARSE_EXPANSION = 1 << 20
# What an expanded tensor may show from few bytes: more than any device holds, far less than an address space.
MAX_SHOWN_BYTES = 1 << 37

DTYPES: dict[str, torch.dtype] = {
    name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype) and "q" not in name
}
STORAGES: dict[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
}


@dataclass(frozen=True, slots=True, eq=False)
class Constructor:
    """A name in the file that stands for something of the table; it can be called by the machine only."""

    build: Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class StorageClass:
    dtype: torch.dtype | None


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Bytes of one record; `dtype` None: untyped."""

    content: bytearray
    dtype: torch.dtype | None


class Malformed(Exception):
    """The text says what was wrong; turned into a CaptureRefused with the path."""


def tensor_over(
    content: bytearray | bytes,
    dtype: torch.dtype,
    offset: Any,
    shape: Any,
    stride: Any,
    requires_grad: Any = False,
) -> torch.Tensor:
    """A tensor over bytes, after all numbers were checked against them. Raises Malformed."""
    shape, stride = _numbers(shape, "shape"), _numbers(stride, "stride")
    if len(shape) != len(stride):
        raise Malformed(f"a tensor has {len(shape)} dimensions and {len(stride)} strides")
    if type(offset) is not int or offset < 0:
        raise Malformed(f"a tensor has the storage offset {shown(offset)}")
    numel, last = 1, offset
    for extent, step in zip(shape, stride, strict=True):
        numel *= extent
        last += (extent - 1) * step
    held = len(content) // dtype.itemsize
    if numel and last >= held:
        raise Malformed(f"a tensor of shape {shape} and strides {stride} reaches element {last} of {held}")
    if numel * dtype.itemsize > MAX_SHOWN_BYTES:
        raise Malformed(f"a tensor of shape {shape} would show {numel} elements")
    if not numel:
        made = torch.empty(0, dtype=dtype).as_strided(shape, stride)
    else:
        made = torch.frombuffer(content, dtype=dtype, count=held).as_strided(shape, stride, offset)
    if requires_grad and (dtype.is_floating_point or dtype.is_complex):
        made.requires_grad_(True)
    return made


def _numbers(value: Any, what: str) -> tuple[int, ...]:
    numbers = _sequence(value, MAX_DIMENSIONS, f"the {what} of a tensor")
    for item in numbers:
        if type(item) is not int or not 0 <= item < 1 << 48:
            raise Malformed(f"the {what} of a tensor has {shown(item)} in it")
    return numbers


def _sequence(value: Any, most: int, what: str) -> tuple[Any, ...]:
    """The items of a tuple or list, counted before they are copied: a range of any length takes a few bytes."""
    if type(value) not in (tuple, list, torch.Size):
        raise Malformed(f"{what} is {shown(value)}")
    if len(value) > most:
        raise Malformed(f"{what} has {len(value)} items, and at most {most} make sense")
    return tuple(value)


# No complex: a file could hold as many of them as it likes with one and the same hash.
_SCALARS = frozenset({str, bytes, int, float, bool, type(None), torch.dtype, torch.device})


def checked_key(value: Any) -> Any:
    """A dict key or set item. Only what is hashed in no time: tuples of tuples can take 2^n steps."""
    for item in (value,) if type(value) is not tuple else _sequence(value, MAX_KEY_ITEMS, "a key"):
        if type(item) not in _SCALARS:
            raise Malformed(f"has a key with {shown(item)} in it")
        if isinstance(item, str | bytes) and len(item) > MAX_KEY_LENGTH:
            raise Malformed(f"has a key of {len(item)} characters")
    return value


def _rebuild_v2(
    storage: Any, offset: Any, shape: Any, stride: Any, requires_grad: Any, *_: Any
) -> torch.Tensor:
    if not isinstance(storage, Storage) or storage.dtype is None:
        raise Malformed("a tensor has no storage")
    return tensor_over(storage.content, storage.dtype, offset, shape, stride, requires_grad)


def _rebuild_v3(
    storage: Any, offset: Any, shape: Any, stride: Any, requires_grad: Any, hooks: Any, dtype: Any, *_: Any
) -> torch.Tensor:
    if not isinstance(storage, Storage) or not isinstance(dtype, torch.dtype):
        raise Malformed("a tensor has no storage or no dtype")
    return tensor_over(storage.content, dtype, offset, shape, stride, requires_grad)


def _rebuild_parameter(data: Any, requires_grad: Any, *_: Any) -> torch.Tensor:
    if not isinstance(data, torch.Tensor):
        raise Malformed("a parameter has no tensor")
    # As a tensor: what an operator was given is a tensor, and a Parameter class would only hide what it holds.
    return data.detach().requires_grad_(bool(requires_grad) and data.is_floating_point())


def _rebuild_sparse(layout: Any, parts: Any) -> torch.Tensor:
    if type(parts) is not tuple:
        raise Malformed("a sparse tensor has no components")
    if layout is torch.sparse_coo and len(parts) in (3, 4):
        return sparse_over(layout, parts[:2], parts[2])
    if isinstance(layout, torch.layout) and len(parts) == 4:
        return sparse_over(layout, parts[:3], parts[3])
    raise Malformed("a sparse tensor of an unknown layout")


def sparse_over(layout: torch.layout, parts: Sequence[Any], shape: Any) -> torch.Tensor:
    """A sparse tensor of its components (indices and values, or compressed indices, indices and values)."""
    shape = _numbers(shape, "shape")
    for part in parts:
        if not isinstance(part, torch.Tensor) or part.layout is not torch.strided:
            raise Malformed("a sparse tensor has no components")
        held = part.untyped_storage().nbytes()
        if part.numel() * part.itemsize > max(held, MAX_SPARSE_EXPANSION):
            raise Malformed(f"a component of a sparse tensor shows {part.numel()} elements of {held} bytes")
    if layout is torch.sparse_coo:
        indices, values = parts
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
    compressed, plain, values = parts
    return torch.sparse_compressed_tensor(
        compressed, plain, values, shape, layout=layout, check_invariants=True
    )


def _layout(name: Any) -> torch.layout:
    found = vars(torch).get(name.removeprefix("torch.")) if type(name) is str else None
    if not isinstance(found, torch.layout):
        raise Malformed(f"there is no layout {shown(name)}")
    return found


def _encoded(text: Any, codec: Any) -> bytes:
    if not isinstance(text, str) or codec != "latin1":
        raise Malformed("bytes in an unknown encoding")
    return text.encode("latin1")


def _device(*parts: Any) -> Any:
    if [type(part) for part in parts] not in ([str], [str, int]):
        raise Malformed("a device has no name")
    # A vendor's device on a machine without one is a name all the same: torch knows the word or the text stays.
    try:
        return torch.device(*parts)
    except RuntimeError:
        return parts[0][:60]


def _set_of(items: Any = ()) -> set[Any]:
    if type(items) not in (list, tuple):
        raise Malformed(f"fills a set with {shown(items)}")
    return {checked_key(item) for item in items}


def _ordered(items: Any = ()) -> OrderedDict[Any, Any]:
    if type(items) not in (list, tuple):
        raise Malformed(f"fills a dict with {shown(items)}")
    pairs = (_sequence(pair, 2, "an item of a dict") for pair in items)
    return OrderedDict((checked_key(key), value) for key, value in pairs)


def _slice(*parts: Any) -> slice:
    # Not walked like tuples and lists are, so nothing may be nested in it.
    if not all(part is None or type(part) in (int, float, bool, str, torch.Tensor) for part in parts):
        raise Malformed("a slice has a bound that is no number")
    return slice(*parts)


def _returned(kind: type) -> Callable[..., Any]:
    return lambda items, *_: kind(_sequence(items, MAX_RETURNED, f"a {kind.__name__}"))


_CALLABLE: dict[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor_v2": _rebuild_v2,
    "torch._utils _rebuild_tensor_v3": _rebuild_v3,
    "torch._utils _rebuild_parameter": _rebuild_parameter,
    "torch._utils _rebuild_sparse_tensor": _rebuild_sparse,
    "torch.serialization _get_layout": _layout,
    "collections OrderedDict": _ordered,
    "torch Size": lambda items=(): torch.Size(_numbers(items, "shape")),
    "torch device": _device,
    "__builtin__ complex": complex,
    "builtins complex": complex,
    "_codecs encode": _encoded,
    "__builtin__ set": _set_of,
    "builtins set": _set_of,
    "__builtin__ bytearray": lambda *parts: bytes(_encoded(*parts)) if parts else b"",
    "__builtin__ bytes": lambda: b"",
    "__builtin__ slice": _slice,
    "builtins slice": _slice,
    "__builtin__ xrange": range,
    "builtins range": range,
}
_CONSTANTS: dict[str, Any] = {
    f"torch {name}": value
    for name, value in vars(torch).items()
    if isinstance(value, torch.memory_format) or (isinstance(value, torch.dtype) and "q" not in name)
} | {"__builtin__ Ellipsis": Ellipsis, "builtins Ellipsis": Ellipsis}
# Vendors' packages save device tensors by a function of their own that takes what _rebuild_tensor_v2 takes.
_VENDOR_TENSOR = re.compile(r"_rebuild_[a-z0-9]{1,20}_tensor\Z")


def find_global(module: str, name: str) -> Any:
    full = f"{module} {name}"
    if full in _CALLABLE:
        return Constructor(_CALLABLE[full])
    if module in ("torch", "torch.storage") and (name in STORAGES or name == "UntypedStorage"):
        return StorageClass(STORAGES.get(name))
    if full in _CONSTANTS:
        return _CONSTANTS[full]
    if module == "torch.return_types":
        kind = vars(torch.return_types).get(name)
        if isinstance(kind, type) and issubclass(kind, tuple):
            return Constructor(_returned(kind))
    if _VENDOR_TENSOR.match(name):
        return Constructor(_rebuild_v2)
    raise Malformed(f"asks for {module[:60]}.{name[:60]}, which a capture never needs")
