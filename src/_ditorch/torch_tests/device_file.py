"""The file of a device: tolerances, dtypes, what to run and to skip, and what is known not to pass, each with a reason.

``devices/base.toml`` holds for every device, ``devices/<device>.toml`` for one. A user's own file takes the place of
the latter; ``extends = "dipu"`` in it adds to the device's file instead.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from _ditorch.torch_tests.outcomes import OpInfoCheck
from dicore.files import toml_lines

__all__ = [
    "DeviceFile",
    "DeviceFileError",
    "KnownCase",
    "KnownPair",
    "OpInfoPart",
    "SkippedCase",
    "SkippedPair",
    "SourcePart",
    "ToleranceEntry",
    "known_devices",
    "line_of",
    "load",
]

Reason = Annotated[str, Meta(min_length=3)]
Kind = Literal["artefact", "refusal", "gap"]
Bound = Annotated[float, Meta(ge=0)]
Part = TypeVar("Part", bound=Struct)
_DTYPE = re.compile(r"(u?int\d+|b?float\d+\w*|complex\d+|bool)")


class DeviceFileError(ValueError):
    """The file does not say what it has to; the text names file, line and key."""


class _Pairs(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which pairs an entry is about; what is left out means all."""

    op: str
    checks: list[OpInfoCheck] | None = None
    dtypes: list[str] | None = None


class KnownPair(_Pairs, kw_only=True):
    """Pairs that do not pass, and why."""

    kind: Kind
    reason: Reason
    match: str = ""
    torch: str = ""
    without: str = ""


class ToleranceEntry(_Pairs, kw_only=True):
    """A bound beside torch's default for the dtype; the wider holds."""

    rtol: Bound
    atol: Bound
    reason: Reason


class SkippedPair(_Pairs, kw_only=True):
    """Pairs that are not run."""

    reason: Reason


class _Cases(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which cases of torch's test files an entry is about: full-match patterns of file and Class.method."""

    case: str
    file: str = ".*"


class SkippedCase(_Cases, kw_only=True):
    """Cases that are not run."""

    reason: Reason


class KnownCase(_Cases, kw_only=True):
    """Cases that do not pass, and why."""

    kind: Kind
    reason: Reason
    match: str = ""
    torch: str = ""


class OpInfoPart(Struct, forbid_unknown_fields=True, kw_only=True):
    """``[opinfo]``: the operator database."""

    dtypes_of: Literal["cpu", "cuda"] | None = None
    dtypes: list[str] | None = None
    torch_skips: bool | None = None
    undefined_values: list[str] = []
    host_arguments: list[str] = []
    known: list[KnownPair] = []
    tolerance: list[ToleranceEntry] = []
    skip: list[SkippedPair] = []


class SourcePart(Struct, forbid_unknown_fields=True, kw_only=True):
    """``[source]``: torch's test files."""

    files: list[str] | None = None
    cases: str | None = None
    environment: dict[str, str] = {}
    known: list[KnownCase] = []
    skip: list[SkippedCase] = []


class DeviceFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """A whole file."""

    extends: str = ""
    opinfo: OpInfoPart = msgspec.field(default_factory=OpInfoPart)
    source: SourcePart = msgspec.field(default_factory=SourcePart)


def known_devices() -> list[str]:
    """The devices that have a file."""
    names = [Path(entry.name) for entry in (files(__package__) / "devices").iterdir()]
    return sorted(name.stem for name in names if name.suffix == ".toml" and name.stem != "base")


def load(device_type: str, path: Path | None = None) -> DeviceFile:
    """Everything that holds for a device: the base, then the device's file or the user's."""
    own = _read(path) if path is not None else None
    parent = device_type if own is None else own.extends
    found = [_built_in("base")]
    if parent in known_devices():
        found.append(_built_in(parent))
    elif own is not None and parent:
        raise DeviceFileError(
            f"{path}: extends = {parent!r}: no such device. Known: {', '.join(known_devices())}."
        )
    if own is not None:
        found.append(own)
    return DeviceFile(
        opinfo=_merged(OpInfoPart, [file.opinfo for file in found]),
        source=_merged(SourcePart, [file.source for file in found]),
    )


def _merged(kind: type[Part], parts: list[Any]) -> Part:
    """Lists and tables add up; of anything else the last word counts."""
    values: dict[str, Any] = {}
    for part in parts:
        for name in kind.__struct_fields__:
            value = getattr(part, name)
            if isinstance(value, list) and name not in ("dtypes", "files"):
                values[name] = [*values.get(name, []), *value]
            elif isinstance(value, dict):
                values[name] = {**values.get(name, {}), **value}
            elif value is not None:
                values[name] = value
    return kind(**values)


def _built_in(name: str) -> DeviceFile:
    return _read(Path(str(files(__package__) / "devices" / f"{name}.toml")))


def _read(path: Path) -> DeviceFile:
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise DeviceFileError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise DeviceFileError(f"{path} is not TOML: {error}") from error
    try:
        found = msgspec.convert(data, DeviceFile)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        raise DeviceFileError(_located(path, text, where.rstrip("`").lstrip("."), message)) from error
    for where, problem in _problems(found):
        raise DeviceFileError(_located(path, text, where, problem))
    return found


def _located(path: Path, text: str, key: str, problem: str) -> str:
    """Say where: a field that is unknown is named by the message, one that is wrong by the key."""
    unknown = re.search(r"(?:unknown|required) field `(\w+)`", problem)
    full = f"{key}.{unknown[1]}".lstrip(".") if unknown and "unknown" in problem else key
    line = line_of(text, full)
    return f"{path}{f', line {line}' if line else ''}, {full or 'the file'}: {problem}"


def _problems(found: DeviceFile) -> Iterator[tuple[str, str]]:
    """What the types cannot say."""
    for part, lists in (("opinfo", ("known", "tolerance", "skip")), ("source", ("known", "skip"))):
        for name in lists:
            for index, entry in enumerate(getattr(getattr(found, part), name)):
                yield from ((f"{part}.{name}[{index}].{key}", why) for key, why in _entry_problems(entry))
    for index, dtype in enumerate(found.opinfo.dtypes or ()):
        if not _DTYPE.fullmatch(dtype):
            yield f"opinfo.dtypes[{index}]", f"no dtype is called {dtype!r}"
    if found.source.cases is not None:
        yield from (("source.cases", why) for why in _pattern_problems(found.source.cases))


def _entry_problems(entry: Struct) -> Iterator[tuple[str, str]]:
    for key in ("op", "case", "file", "match"):
        yield from ((key, why) for why in _pattern_problems(getattr(entry, key, "")))
    for dtype in getattr(entry, "dtypes", None) or ():
        if not _DTYPE.fullmatch(dtype):
            yield "dtypes", f"no dtype is called {dtype!r}"
    try:
        SpecifierSet(getattr(entry, "torch", ""))
    except InvalidSpecifier as error:
        yield "torch", f"{error}; expected something like '>=2.12'"


def _pattern_problems(pattern: str) -> Iterator[str]:
    try:
        re.compile(pattern)
    except re.error as error:
        yield f"{pattern!r} is no pattern: {error}"


def line_of(text: str, key: str) -> int | None:
    """The line of ``opinfo.known[3].op``; of the table it belongs to where the key itself is not found."""
    lines = toml_lines(text)
    while key and key not in lines:
        key = re.sub(r"\.?[\w\-]+$|\[\d+\]$", "", key)
    return lines.get(key)
