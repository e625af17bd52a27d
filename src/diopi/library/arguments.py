"""Python values -> what a C function takes, one rule for each kind of argument (signatures.py)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from diopi.library.errors import LibraryError
from diopi.library.handles import Generator, Scalar, ScalarStruct, SizeStruct, Tensor, dtype_code

_INTEGERS: dict[str, tuple[type[ctypes._SimpleCData[int]], int, int]] = {
    "int64": (ctypes.c_int64, -(2**63), 2**63 - 1),
    "int32": (ctypes.c_int32, -(2**31), 2**31 - 1),
    "uint64": (ctypes.c_uint64, 0, 2**64 - 1),
    "enum": (ctypes.c_int, -(2**31), 2**31 - 1),
}
_POINTED: dict[str, type[ctypes._SimpleCData[Any]]] = {
    "bool": ctypes.c_bool,
    "double": ctypes.c_double,
    "int64": ctypes.c_int64,
}
_TYPES: dict[str, type] = {
    "context": ctypes.c_void_p,
    "tensor": ctypes.c_void_p,
    "tensors": ctypes.c_void_p,
    "made": ctypes.c_void_p,
    "generator": ctypes.c_void_p,
    "generators": ctypes.c_void_p,
    "size": SizeStruct,
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "text?": ctypes.c_char_p,
    **{kind: ctype for kind, (ctype, _, _) in _INTEGERS.items()},
}


def c_type(kind: str) -> type:
    """The ctypes type of an argument; every pointer is a plain address."""
    return _TYPES.get(kind, ctypes.c_void_p)


def _integer(kind: str, value: Any) -> int:
    _, low, high = _INTEGERS[kind]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        raise TypeError(f"a whole number, not {value!r}")
    if not low <= value <= high:
        raise TypeError(f"a number from {low} to {high}, not {value}")
    return value


def _real(value: Any) -> float:
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"a number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise TypeError(f"a number that fits a double, not {value}") from None


def _truth(value: Any) -> bool:
    if not isinstance(value, (bool, int)):
        raise TypeError(f"True or False, not {value!r}")
    return bool(value)


class NativeCall:
    """The arguments of one call. Keeps alive what they point to, and knows where results will be."""

    def __init__(self, machine: int) -> None:
        self._machine = machine
        self._kept: list[Any] = []
        self.made: dict[str, ctypes.c_void_p] = {}
        self.values: dict[str, ctypes._SimpleCData[Any]] = {}

    def convert(self, kind: str, name: str, given: Mapping[str, Any]) -> Any:
        """What ctypes takes for the argument `name`; TypeError says what was expected."""
        if kind == "made" and not isinstance(given.get(name), list):
            self.made[name] = ctypes.c_void_p()
            return ctypes.addressof(self.made[name])
        if kind.endswith("!"):
            self.values[name] = _POINTED[kind[:-1]](given.get(name) or 0)
            return ctypes.addressof(self.values[name])
        return self._rules[kind](self, given.get(name), kind)

    def _tensor(self, value: Any, kind: str) -> int | None:
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"a Tensor or None, not {value!r}")
        return None if value is None else value.handle

    def _array(self, value: Any, of: Callable[[Any, str], int | None], what: str) -> int | None:
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"a list of {what}, not {value!r}")
        array = (ctypes.c_void_p * max(len(value), 1))(*(of(v, "") for v in value))
        self._kept.append(array)
        return ctypes.addressof(array)

    def _tensors(self, value: Any, kind: str) -> int | None:
        return self._array(value, self._tensor, "Tensors")

    def _generator(self, value: Any, kind: str) -> int | None:
        if value is not None and not isinstance(value, Generator):
            raise TypeError(f"a Generator or None, not {value!r}")
        return None if value is None else value.handle(self._machine)

    def _generators(self, value: Any, kind: str) -> int | None:
        return self._array(value, self._generator, "Generators")

    def _size(self, value: Any, kind: str) -> SizeStruct:
        if value is None:
            return SizeStruct(None, 0)
        if isinstance(value, SizeStruct):  # as it is: a caller that tries what a library does with nonsense
            return value
        if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
            raise TypeError(f"a list of whole numbers, not {value!r}")
        numbers = [_integer("int64", v) for v in value]
        array = (ctypes.c_int64 * len(numbers))(*numbers)
        self._kept.append(array)
        return SizeStruct(ctypes.cast(array, ctypes.POINTER(ctypes.c_int64)), len(numbers))

    def _size_or_null(self, value: Any, kind: str) -> int | None:
        return None if value is None else self._keep(self._size(value, kind))

    def _scalar(self, value: Any, kind: str) -> int | None:
        if value is None:
            return None
        if not isinstance(value, Scalar):
            if not isinstance(value, (bool, int, float)):
                raise TypeError(f"a number, a Scalar or None, not {value!r}")
            # True and False are announced as integers: published libraries read `fval` of every other dtype
            value = Scalar("int64" if isinstance(value, int) else "float64", value)
        struct = ScalarStruct(stype=dtype_code(value.dtype))
        if value.integral:
            struct.ival = _integer("int64", value.value)
        else:
            struct.fval = _real(value.value)
        return self._keep(struct)

    def _pointed(self, value: Any, kind: str) -> int | None:
        if value is None:
            return None
        rule = {"bool?": _truth, "double?": _real, "int64?": lambda v: _integer("int64", v)}[kind]
        return self._keep(_POINTED[kind[:-1]](rule(value)))

    def _keep(self, struct: Any) -> int:
        self._kept.append(struct)
        return ctypes.addressof(struct)

    @staticmethod
    def _required(value: Any) -> Any:
        if value is None:
            raise TypeError("a value: it cannot be absent")
        return value

    def _text(self, value: Any, kind: str) -> bytes | None:
        if value is not None and not isinstance(value, str):
            raise TypeError(f"a text or None, not {value!r}")
        return None if value is None else value.encode()

    _rules: Mapping[str, Callable[[NativeCall, Any, str], Any]] = {
        "tensor": _tensor,
        "tensors": _tensors,
        "made": _tensors,
        "generator": _generator,
        "generators": _generators,
        "size": _size,
        "size?": _size_or_null,
        "scalar?": _scalar,
        "text?": _text,
        "bool?": _pointed,
        "double?": _pointed,
        "int64?": _pointed,
        "pointer": lambda self, value, kind: value,
        "bool": lambda self, value, kind: _truth(self._required(value)),
        "float": lambda self, value, kind: _real(self._required(value)),
        "double": lambda self, value, kind: _real(self._required(value)),
        **{k: (lambda self, value, kind: _integer(kind, self._required(value))) for k in _INTEGERS},
    }


def arguments_for(
    call: NativeCall, signature: list[tuple[str, str]], given: Mapping[str, Any], context: int
) -> list[Any]:
    """All arguments in the order of C; LibraryError names the one that is wrong."""
    parameters = {name for name, _ in signature}
    if unknown := [name for name in given if name not in parameters]:
        raise LibraryError(f"unknown arguments {unknown}; the function has {sorted(parameters - {'ctx'})}")
    converted = []
    for name, kind in signature:
        if kind == "context":
            converted.append(context)
            continue
        try:
            converted.append(call.convert(kind, name, given))
        except TypeError as error:
            raise LibraryError(f"argument {name} ({kind.rstrip('?!')}) must be {error}") from None
    return converted
