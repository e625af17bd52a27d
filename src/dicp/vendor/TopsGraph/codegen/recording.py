"""What an emitted program builds: compiled against the stub of the builder, run, and read back."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import json
import tempfile
from _ctypes import dlclose
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dicp.compile_jobs import CompileJob
from dicp.errors import CompileError, InvalidGraphError
from dicp.settings import CXX
from dicp.vendor.TopsGraph.codegen.dtypes import BY_NAME
from dicp.vendor.TopsGraph.operators import TABLE, TopsOperator
from dicp.vendor.TopsGraph.stub.declaration import FOLDER

__all__ = ["BuilderCall", "Recording", "check", "read_recording", "record", "stub_library"]

_STANDARD = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-O0")
_WARNINGS = ("-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class BuilderCall:
    """One call of the builder. Operands are `Operand`s, types `ResultTypes`, all else as in the program."""

    name: str
    number: int
    arguments: tuple[Any, ...]
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Operand:
    """The result of an earlier call."""

    number: int


@dataclass(frozen=True)
class ResultTypes:
    """A written type: of a tensor, or those of a tuple."""

    types: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    is_tuple: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.types[0][0]

    @property
    def dtype(self) -> torch.dtype:
        return self.types[0][1]


@dataclass(frozen=True)
class Recording:
    """All calls of a program, in order; functions are graphs within it, such as the sum that a scatter adds by."""

    calls: tuple[BuilderCall, ...]
    outputs: tuple[int, ...]
    functions: dict[str, tuple[int, ...]]
    """The outputs of each."""


def record(source: str) -> str:
    """The recording of a program, as text. Raises CompileError where it does not compile against the stub."""
    stub_library()
    command = (
        *(*CXX.get().split(), *_STANDARD, *_WARNINGS, "-shared"),
        *(*_prepared_header(), "-I", str(FOLDER), "-o", "{output}", "{source}"),
    )
    made = CompileJob(source, command, key=_stub_digest()).run()
    library = ctypes.CDLL(str(made.path))
    try:
        with tempfile.NamedTemporaryFile(prefix="dicp-") as file:
            failed = library.compile(file.name.encode(), 0, None)
            if failed:
                raise CompileError(f"the emitted program could not be recorded: its compile() gave {failed}")
            return Path(file.name).read_text(encoding="utf-8")
    finally:
        dlclose(library._handle)


@cache
def stub_library() -> ctypes.CDLL:
    """The stub, compiled and loaded where programs find its functions."""
    source = "\n".join(f'#include "{name}"' for name in ("recorder.cpp", "operators.cpp"))
    command = (*CXX.get().split(), *_STANDARD[:2], *_WARNINGS, "-O1", "-shared", "-I", str(FOLDER))
    made = CompileJob(source + "\n", (*command, "-o", "{output}", "{source}"), key=_stub_digest()).run()
    return ctypes.CDLL(str(made.path), mode=ctypes.RTLD_GLOBAL)


@cache
def _prepared_header() -> tuple[str, ...]:
    """The header is compiled once: programs then take a third of the time."""
    source = '#include "dtu/hlir_builder/hlir_builder.h"\n'
    command = (
        *CXX.get().split(),
        *(*_STANDARD, *_WARNINGS, "-x", "c++-header", "-I", str(FOLDER), "-o", "{output}", "{source}"),
    )
    try:
        made = CompileJob(
            source, command, key=_stub_digest(), source_name="builder.h", output_suffix=".h.gch"
        ).run()
    except CompileError:
        return ()
    return ("-include", str(made.path.with_suffix("")))


@cache
def _stub_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in (".h", ".cpp"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def read_recording(text: str) -> Recording:
    """A recording from its text."""
    calls: dict[int, BuilderCall] = {}
    functions: dict[str, tuple[int, ...]] = {}
    outputs: tuple[int, ...] = ()
    for line in text.splitlines():
        entry = json.loads(line)
        if "name" in entry:
            number = entry["number"]
            calls[number] = BuilderCall(entry["name"], number, tuple(map(_read, entry["arguments"])))
        elif "attribute" in entry:
            calls[entry["of"]].attributes[entry["attribute"]] = entry["value"]
        elif "outputs" in entry:
            numbers = tuple(item["op"] for item in entry["outputs"])
            if entry["function"]:
                functions[entry["function"]] = numbers
            else:
                outputs = numbers
    return Recording(tuple(calls.values()), outputs, functions)


def _read(value: Any) -> Any:
    match value:
        case {"op": number}:
            return Operand(number)
        case {"types": types}:
            return ResultTypes(tuple(map(_read_type, types)), is_tuple=True)
        case {"shape": _}:
            return ResultTypes((_read_type(value),), is_tuple=False)
        case list():
            return [_read(item) for item in value]
    return value


def _read_type(entry: dict[str, Any]) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(entry["shape"]), BY_NAME[entry["dtype"]]


def check(recording: Recording) -> dict[int, Any]:
    """The types of all results by the rules of their operators, as tensors without values. Raises InvalidGraphError."""
    types: dict[int, Any] = {}
    for call in recording.calls:
        try:
            types[call.number] = _checked(call, types, recording)
        except InvalidGraphError as error:
            raise InvalidGraphError(f"op{call.number} = {call.name}: {error}") from None
    missing = [number for number in recording.outputs if number not in types]
    if missing or not recording.outputs:
        raise InvalidGraphError(
            f"the program's outputs are {list(recording.outputs)}, which it does not build"
        )
    return types


def _checked(call: BuilderCall, types: dict[int, Any], recording: Recording) -> Any:
    written = next((item for item in call.arguments if isinstance(item, ResultTypes)), None)
    if call.name in ("CreateInput", "Const"):
        assert written is not None
        if call.name == "Const" and 2 * _bytes(written) != len(call.arguments[0]):
            raise InvalidGraphError(
                f"{len(call.arguments[0]) // 2} bytes for {written.shape} of {written.dtype}"
            )
        return _meta(written.types[0])
    operator = TABLE.get(call.name)
    if operator is None:
        raise InvalidGraphError("the builder has no such operator")
    if operator.attributes != tuple(call.attributes.items()):
        raise InvalidGraphError(f"has the attributes {call.attributes}, expected {dict(operator.attributes)}")
    found = operator.result_types(*_operands(call, types), **_keywords(operator, call, written, recording))
    results = found if isinstance(found, list) else [found]
    if written is not None and list(written.types) != [(tuple(shape), dtype) for shape, dtype in results]:
        raise InvalidGraphError(f"the written type is {list(written.types)}, its rule gives {results}")
    return [_meta(item) for item in results] if isinstance(found, list) else _meta(results[0])


def _operands(call: BuilderCall, types: dict[int, Any]) -> list[Any]:
    def value(item: Any) -> Any:
        if isinstance(item, Operand):
            if item.number not in types:
                raise InvalidGraphError(f"op{item.number} is not built before it")
            return types[item.number]
        return [value(part) for part in item] if isinstance(item, list) else item

    return [value(item) for item in call.arguments if not isinstance(item, ResultTypes)]


def _keywords(
    operator: TopsOperator, call: BuilderCall, written: ResultTypes | None, recording: Recording
) -> dict[str, Any]:
    """What rules want to know besides the operands."""
    wanted = inspect.signature(operator.rule).parameters
    found: dict[str, Any] = {}
    if written is not None:
        found = {"shape": written.shape, "dtype": written.dtype}
    if "count" in wanted:
        number = call.arguments[1].number
        found["count"] = int(constant_value(recording.calls[number]))
    any_keyword = any(parameter.kind is parameter.VAR_KEYWORD for parameter in wanted.values())
    return found if any_keyword else {name: value for name, value in found.items() if name in wanted}


def constant_value(call: BuilderCall) -> torch.Tensor:
    """The tensor of a Const."""
    written: ResultTypes = call.arguments[1]
    raw = bytearray.fromhex(call.arguments[0])
    return torch.frombuffer(raw, dtype=written.dtype).reshape(written.shape).clone()


def _bytes(written: ResultTypes) -> int:
    return int(torch.Size(written.shape).numel()) * written.dtype.itemsize


def _meta(found: tuple[tuple[int, ...], torch.dtype]) -> torch.Tensor:
    return torch.empty(tuple(found[0]), dtype=found[1], device="meta")
