"""Loads any DIOPI library and calls its functions, without a framework."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diopi.library.arguments import NativeCall, arguments_for, c_type
from diopi.library.direct import FOLDER, direct
from diopi.library.elf import check_shared_object
from diopi.library.errors import (
    ERROR,
    NOT_IMPLEMENTED,
    SUCCESS,
    LibraryError,
    status_name,
    writes_out_of_bounds,
)
from diopi.library.handles import Made, made_from
from diopi.library.memory import LibraryMemory
from diopi.library.signatures import OPERATORS, RUNTIME, TEXTS
from diopi.settings import ADAPTOR_CONFIG, ADAPTOR_REPORT

if TYPE_CHECKING:
    from diopi.adaptor.binding import Adaptor

_VENDOR_ENTRY = "dipuGetVendorTable"


class _VendorHead(ctypes.Structure):
    """The beginning of dipuVendorTable."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("abi", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("operator_library", ctypes.c_char_p),
    )


@cache
def signature(name: str) -> list[tuple[str, str]]:
    """Name and kind of each argument of an operator."""
    pairs = (item.rpartition(":") for item in OPERATORS[name].split())
    return [(argument, kind) for argument, _, kind in pairs]


class Answer:
    """What a call gave. Close it (or use it in `with`) when the tensors the library made are read."""

    def __init__(self, code: int, error: str = "", context: int | None = None) -> None:
        self.code = code
        self.error = error
        self.made: dict[str, Made] = {}
        self.values: dict[str, bool | int | float] = {}
        self.faults: list[str] = []
        """Where the library wrote beside memory that it had required, if that was watched (LibraryMemory.watch_required)."""
        self.thrown = False
        """The library let a C++ exception out of its C function; `error` has its text."""
        self._context = context

    @property
    def ok(self) -> bool:
        return self.code == SUCCESS

    @property
    def status(self) -> str:
        """The name of the code, such as diopiErrorOccurred."""
        return status_name(self.code)

    def close(self) -> None:
        """Frees what the library made."""
        if self._context:
            direct().context_destroy(self._context)
        self._context = None

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    __del__ = close

    def __repr__(self) -> str:
        return f"Answer({self.status}{': ' + self.error if self.error else ''})"


class Library:
    """A loaded library. `memory` is where its tensors have to lie."""

    def __init__(self, path: Path, operators: ctypes.CDLL, memory: LibraryMemory) -> None:
        self.path = path
        self.memory = memory
        self._operators = operators
        self._functions: dict[str, tuple[Any, int]] = {}
        self.adaptor: Adaptor | None = None
        self.vendor = self._text("diopiGetVendorName")
        self.version = self._text("diopiGetImplVersion")

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        runtime: str | os.PathLike[str] | None = None,
        adaptor: str | os.PathLike[str] | None = None,
    ) -> Library:
        """Loads a library. `runtime`: the library that holds the vendor's memory and streams (include/dipu/vendor.h), where
        it is another one; without any, tensors lie in host memory. `adaptor`: a file of rules that are applied in front of the
        library (diopi.adaptor); without it, the one that DIOPI_ADAPTOR_CONFIG names, if it is set."""
        path = Path(path).absolute()
        check_shared_object(path)
        direct().own_the_table()
        loaded = _load(path)
        source, holder = (path, loaded) if runtime is None else _load_runtime(Path(runtime).absolute())
        table = _vendor_table(source, holder)
        operators = loaded if runtime is not None else _operator_library(table, loaded)
        if not any(hasattr(operators, name) for name in (*OPERATORS, *TEXTS[1:])):
            raise LibraryError(
                f"{path} is not a DIOPI library: it has none of the {len(OPERATORS)} functions of the interface. "
                'If they are there, check that they are exported with C names (extern "C", default visibility).'
            )
        try:
            memory = LibraryMemory(table)
        except LibraryError as error:
            raise LibraryError(f"{source} cannot be used: {error}") from None
        library = cls(path, operators, memory)
        if rules := adaptor or ADAPTOR_CONFIG.get():
            library.adaptor = _adaptor(Path(rules), operators, table)
        return library

    def has(self, name: str) -> bool:
        """Whether the library implements a function of the interface, or its adaptor composes it."""
        if name not in OPERATORS and name not in TEXTS[1:]:
            return False
        return hasattr(self._operators, name) or bool(self.adaptor and self.adaptor.symbol(name))

    def functions(self) -> set[str]:
        """All functions of the interface that it implements."""
        return {name for name in (*OPERATORS, *TEXTS[1:]) if self.has(name)}

    def last_error(self) -> str:
        """The text of the adaptor or of the vendor about the last failure of this thread."""
        return (self.adaptor and self.adaptor.last_error()) or self._text("diopiGetLastErrorString")

    def synchronize(self) -> None:
        """Waits for everything; LibraryError if some of it failed."""
        self.memory.synchronize()

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """Calls a function with its arguments by their names in C. What is missing is NULL where C allows it."""
        if name not in OPERATORS:
            kind = "a runtime function, which libraries call" if name in RUNTIME else "no function of DIOPI"
            raise LibraryError(f"{name} is {kind}; it cannot be called here")
        if not self.has(name):
            return Answer(NOT_IMPLEMENTED, f"{self.path.name} does not have {name}")
        if not direct().installed():
            raise LibraryError(
                "torch_dipu was imported after this library was loaded and has taken over the runtime functions. "
                "Use the library in a process of its own (TORCH_DEVICE_BACKEND_AUTOLOAD=0)."
            )
        answer = Answer(ERROR, context=direct().context_create(self.memory.machine))
        call = NativeCall(self.memory.machine)
        try:
            values = arguments_for(call, signature(name), arguments, answer._context or 0)
            function, target = self._function(name)
            direct().context_aim(answer._context, target)
            answer.code = function(*values)
            self._finish(name, answer, call)
        except LibraryError as error:
            answer.close()
            raise LibraryError(f"{name}: {error}") from None
        return answer

    def _finish(self, name: str, answer: Answer, call: NativeCall) -> None:
        """Reads the results, and frees at once what nobody will look at."""
        if thrown := direct().context_thrown(answer._context):
            answer.thrown = True
            answer.error = f"{name} threw a C++ exception: {thrown.decode(errors='replace')}"
        elif answer.code != SUCCESS:
            answer.error = self.last_error()
        if direct().context_owned(answer._context):  # work may still use what was required
            try:
                self.synchronize()
                answer.faults = list(_damaged(answer._context or 0, call))
            except LibraryError as error:
                answer.code, answer.error = (ERROR, str(error)) if answer.ok else (answer.code, answer.error)
        if answer.ok:
            runtime = _runtime_functions()
            answer.values = {name: value.value for name, value in call.values.items()}
            answer.made = {name: made_from(th.value, runtime) for name, th in call.made.items() if th.value}
        if not answer.made:
            answer.close()

    def _function(self, name: str) -> tuple[Any, int]:
        """What is called, and the library's function that it is to call: an exception of C++ cannot pass through Python."""
        found = self._functions.get(name)
        if found is None:
            form = ctypes.CFUNCTYPE(ctypes.c_int, *(c_type(kind) for _, kind in signature(name)))
            adapted = self.adaptor.symbol(name) if self.adaptor else None
            found = self._functions[name] = (
                form(direct().guard(name.encode())),
                adapted or self._address(name),
            )
        return found

    def _address(self, name: str) -> int:
        function = getattr(self._operators, name, None)
        return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0

    def _text(self, name: str) -> str:
        function = getattr(self._operators, name, None)
        if function is None:
            return ""
        function.restype, function.argtypes = ctypes.c_char_p, []
        return (function() or b"").decode(errors="replace")

    def __repr__(self) -> str:
        return f"Library({str(self.path)!r}, vendor={self.vendor!r})"


def _adaptor(rules: Path, operators: ctypes.CDLL, table: int | None) -> Adaptor:
    from diopi.adaptor.binding import Adaptor
    from diopi.adaptor.costs import append_costs
    from diopi.adaptor.yaml_rules import read_rules

    read = read_rules(rules)
    file = ADAPTOR_REPORT.get()
    report = Path(file).absolute() if file else None
    if report is not None:
        try:
            append_costs(report, [])  # that it cannot be written is said now, not when the work is done
        except OSError as error:
            raise LibraryError(f"{ADAPTOR_REPORT.name}={file} cannot be written: {error.strerror}") from None
    adaptor = Adaptor(read, operators, table)
    if report is not None:
        atexit.register(adaptor.save, report)
    return adaptor


def _damaged(context: int, call: NativeCall) -> Iterator[str]:
    """What was written beside the memory of each tensor that the library required."""
    results = {th.value: name for name, th in call.made.items() if th.value}
    front, behind = ctypes.c_int64(), ctypes.c_int64()
    for number in range(direct().context_owned(context)):
        th: int = direct().context_required(context, number)
        if direct().required_damage(context, th, ctypes.byref(front), ctypes.byref(behind)) != 0:
            raise LibraryError(direct().reason())
        if front.value or behind.value:
            temporary = f"a temporary tensor {made_from(th, _runtime_functions()).description}"
            name = results.get(th, temporary)
            yield from writes_out_of_bounds(name, front.value, behind.value)


@cache
def _runtime_functions() -> ctypes.CDLL:
    return ctypes.CDLL(str(FOLDER / "libdiopirt.so"))


def _load(path: Path) -> ctypes.CDLL:
    tried: set[Path] = set()
    while True:
        try:
            return ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as error:
            missing = _missing_of_torch(str(error))
            if missing is None or missing in tried:
                raise LibraryError(
                    f"{path} cannot be loaded: {error}. A missing library must be on LD_LIBRARY_PATH or the rpath; of the "
                    "symbols, only the runtime functions of diopirt.h are given to it."
                ) from None
        tried.add(missing)
        _load(missing)


def _missing_of_torch(error: str) -> Path | None:
    """The library of torch that the system's loader did not find, as it says, wherever torch is installed.

    A library built with torch names torch's folder relative to its own, which is wrong where the two are installed in
    different folders. A library that is in the process already is found by its name alone, so loading it by its path is enough.
    """
    name, found, _ = error.partition(": cannot open shared object file")
    torch = importlib.util.find_spec("torch") if found else None  # finds it without importing it
    folders = torch.submodule_search_locations if torch else None
    candidates = [Path(folder) / "lib" / name for folder in folders or ()]
    return next((path for path in candidates if path.is_file()), None)


def _load_runtime(path: Path) -> tuple[Path, ctypes.CDLL]:
    check_shared_object(path)
    loaded = _load(path)
    if not hasattr(loaded, _VENDOR_ENTRY):
        raise LibraryError(
            f"{path} holds no vendor runtime: it has no symbol {_VENDOR_ENTRY} (include/dipu/vendor.h)"
        )
    return path, loaded


def _vendor_table(path: Path, loaded: ctypes.CDLL) -> int | None:
    """The address of the vendor's table, or None where the library has none."""
    entry = getattr(loaded, _VENDOR_ENTRY, None)
    if entry is None:
        return None
    entry.restype, entry.argtypes = ctypes.c_void_p, []
    table: int | None = entry()
    if not table:
        raise LibraryError(f"{path} returned no vendor table from {_VENDOR_ENTRY}")
    return table


def _operator_library(table: int | None, loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Where the operators are: the vendor's table may name another library."""
    head = _VendorHead.from_address(table) if table else None
    if head is None or head.size < ctypes.sizeof(_VendorHead) or not head.operator_library:
        return loaded
    return _load(Path(os.fsdecode(head.operator_library)))
