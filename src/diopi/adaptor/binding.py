"""libdiopi_adaptor (csrc/adaptor) as ctypes: one adaptor in front of one library."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from diopi.adaptor.costs import Cost, append_costs
from diopi.adaptor.rules import AdaptorRules
from diopi.library.direct import FOLDER
from diopi.library.errors import LibraryError


class _CostStruct(ctypes.Structure):
    """diopiAdaptorCost"""

    _fields_ = (
        ("name", c_char_p),
        ("calls", c_uint64),
        ("composed", c_uint64),
        ("conversions", c_uint64),
        ("on_host", c_uint64),
        ("bytes", c_uint64),
        ("nanoseconds", c_uint64),
        ("call_nanoseconds", c_uint64),
        ("errors", c_uint64),
    )


_Row = CFUNCTYPE(None, c_void_p, POINTER(_CostStruct))


@cache
def _library() -> ctypes.CDLL:
    path = FOLDER / "libdiopi_adaptor.so"
    if not path.is_file():
        raise LibraryError(f"{path} does not exist. Was the project built (pip install)?")
    loaded = ctypes.CDLL(str(path))
    loaded.diopi_adaptor_set_lookup.argtypes = [c_void_p, c_void_p]
    loaded.diopi_adaptor_set_memory.argtypes = [c_void_p]
    loaded.diopi_adaptor_configure.argtypes = [c_char_p]
    loaded.diopi_adaptor_configure.restype = c_int
    loaded.diopi_adaptor_symbol.argtypes = [c_char_p]
    loaded.diopi_adaptor_symbol.restype = c_void_p
    loaded.diopi_adaptor_last_error.argtypes = []
    loaded.diopi_adaptor_last_error.restype = c_char_p
    loaded.diopi_adaptor_report.argtypes = [_Row, c_void_p]
    return loaded


class Adaptor:
    """Rules in front of a loaded library. There is one at a time in a process: close it before making another."""

    _in_use: Adaptor | None = None

    def __init__(self, rules: AdaptorRules, operators: ctypes.CDLL, vendor_table: int | None) -> None:
        if Adaptor._in_use is not None:
            raise LibraryError(
                "this process has an adaptor in front of a library already. Close that one (library.adaptor.close()) and do not "
                "call its library any more, or use another process."
            )
        self.rules = rules
        self._operators = operators  # keeps it loaded
        library = _library()
        lookup = ctypes.cast(ctypes.CDLL(None).dlsym, c_void_p)
        library.diopi_adaptor_set_lookup(lookup, operators._handle)
        library.diopi_adaptor_set_memory(vendor_table)
        if library.diopi_adaptor_configure(rules.compact().encode()) != 0:
            raise LibraryError(self.last_error())
        Adaptor._in_use = self

    def symbol(self, name: str) -> int | None:
        """The address of the function to call for an operator; None if the library has none and no composite helps."""
        address: int | None = _library().diopi_adaptor_symbol(name.encode())
        return address

    def last_error(self) -> str:
        """Why a call of this thread failed in the adaptor, told once; empty if it did not."""
        return (_library().diopi_adaptor_last_error() or b"").decode(errors="replace")

    def costs(self) -> list[Cost]:
        """What conversions cost so far, for each operator that was called through the adaptor."""
        found: list[Cost] = []

        def row(_: int | None, cost: ctypes._Pointer[_CostStruct]) -> None:
            values = {name: getattr(cost.contents, name) for name, _ in _CostStruct._fields_[1:]}
            found.append(Cost(cost.contents.name.decode(), **values))

        _library().diopi_adaptor_report(_Row(row), None)
        return found

    def save(self, path: Path) -> None:
        """Adds the costs to a file that `diopi adaptor report` reads."""
        append_costs(path, self.costs())

    def close(self) -> None:
        """Takes the rules away; the library must not be called through this adaptor any more."""
        if Adaptor._in_use is self:
            Adaptor._in_use = None
            _library().diopi_adaptor_configure(b"")
            _library().diopi_adaptor_set_lookup(None, None)
