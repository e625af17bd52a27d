"""Settings of the tools: one schema a tool; argument, then environment, then file, then default.

A schema is a frozen dataclass whose fields are made by `setting`. `read` fills one in and remembers where each
value came from, so that `ditorch config` can say so. A bad value is an error that names its source.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Schema = TypeVar("Schema")


class SettingError(ValueError):
    """A setting has a value that cannot be used; the message says which, where it came from and what is expected."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the value of a setting came from."""

    value: Any
    origin: str


def setting(default: Any, env: str, parse: Callable[[str], Any] = str, help: str = "") -> Any:
    """A field of a schema, with the environment variable that sets it and the reader of its text."""
    return dataclasses.field(default=default, metadata={"env": env, "parse": parse, "help": help})


def flag(text: str) -> bool:
    """Read a yes or a no."""
    word = text.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError(f"expected 1 or 0, got {text!r}")


def size(text: str) -> int:
    """Read a number of bytes, with an optional unit: 4096, 64K, 16M, 2G."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"expected a number of bytes such as 4096, 64K or 2G, got {text!r}")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def one_of(*choices: str) -> Callable[[str], str]:
    """The reader of a setting that takes one of a few words."""

    def read_choice(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(f"expected {' or '.join(choices)}, got {text!r}")
        return word

    return read_choice


@functools.lru_cache(maxsize=64)
def _compiled(text: str, source: str) -> re.Pattern[str] | None:
    items = [item.strip() for item in text.split(",") if item.strip()]
    for item in items:
        try:
            re.compile(item)
        except re.error as error:
            raise SettingError(
                f"{source}: {item!r} is not a valid pattern ({error}). Items are full operator names or regular "
                f"expressions that match a whole name, separated by commas; for every name with 'add' in it "
                f"write '.*add.*'."
            ) from error
    return re.compile("|".join(f"(?:{item})" for item in items)) if items else None


@dataclasses.dataclass(frozen=True)
class Names:
    """Which operators a tool is for: those on the list that are not on the list of exceptions."""

    listed: str = ".*"
    disabled: str = ""
    listed_source: str = "list"
    disabled_source: str = "disable_list"

    def __post_init__(self) -> None:
        _compiled(self.listed, self.listed_source)
        _compiled(self.disabled, self.disabled_source)

    def match(self, *names: str) -> bool:
        """Whether an operator is meant that goes by these names: one is listed and none is an exception."""
        wanted = _compiled(self.listed, self.listed_source)
        unwanted = _compiled(self.disabled, self.disabled_source)
        if unwanted is not None and any(unwanted.fullmatch(name) for name in names):
            return False
        return wanted is not None and any(wanted.fullmatch(name) for name in names)

    def excludes(self, name: str) -> bool:
        """Whether a name is on the list of exceptions."""
        unwanted = _compiled(self.disabled, self.disabled_source)
        return unwanted is not None and unwanted.fullmatch(name) is not None

    def names_exactly(self, name: str) -> bool:
        """Whether the list spells this very name out, as opposed to a pattern that happens to match it."""
        return name in [item.strip() for item in self.listed.split(",")]


@dataclasses.dataclass(frozen=True)
class ToolSettings:
    """What every tool has; a subclass adds its LIST, its DISABLE_LIST and what else it needs."""

    verbose: bool = setting(False, "OP_TOOLS_VERBOSE", flag, "print a table for every call")
    results: str = setting("op_tools_results", "OP_TOOLS_RESULTS", str, "folder for all results")
    device: str = setting("auto", "OP_TOOLS_DEVICE", str, "device types to watch, or auto: all but the CPU")
    max_cache_size: int = setting(1000, "OP_TOOLS_MAX_CACHE_SIZE", int, "rows kept before they are written")
    print_stack: bool = setting(False, "OP_TOOLS_PRINT_STACK", flag, "print whole call stacks")


@functools.lru_cache(maxsize=8)
def _file(folder: str, _stamp: tuple[float, ...]) -> tuple[dict[str, Any], str]:
    for name, path in (("ditorch.toml", ("op_tools",)), ("pyproject.toml", ("tool", "ditorch", "op_tools"))):
        file = Path(folder, name)
        if not file.is_file():
            continue
        try:
            table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
            raise SettingError(f"{file} cannot be read: {error}") from error
        for depth, key in enumerate(path, 1):
            table = _table(table, key, ".".join(path[:depth]), str(file))
        if table:
            return table, str(file)
    return {}, ""


def _table(parent: Mapping[str, Any], key: str, name: str, file: str) -> dict[str, Any]:
    """A table of the file; empty where there is none."""
    table = parent.get(key, {})
    if not isinstance(table, dict):
        raise SettingError(
            f"{file}: {name} must be a table, got {table!r}. Write [{name}] and the settings below it."
        )
    return table


def settings_file() -> tuple[dict[str, Any], str]:
    """The op_tools table of ditorch.toml or pyproject.toml of the working folder, and the file's name."""
    folder = Path.cwd()
    stamps = tuple(
        file.stat().st_mtime if (file := folder / name).is_file() else 0.0
        for name in ("ditorch.toml", "pyproject.toml")
    )
    return _file(str(folder), stamps)


def _from_text(field: dataclasses.Field[Any], text: str, origin: str) -> Any:
    try:
        return field.metadata["parse"](text)
    except SettingError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise SettingError(f"{origin}: {error}") from error


def read(
    schema: type[Schema],
    section: str,
    arguments: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
) -> tuple[Schema, dict[str, Source]]:
    """Fill in a schema; the second result says for each field where its value came from."""
    environ = os.environ if environ is None else environ
    fields = {field.name: field for field in dataclasses.fields(schema)}  # type: ignore[arg-type]
    unknown = set(arguments) - set(fields)
    if unknown:
        raise SettingError(
            f"{section}: unknown setting {sorted(unknown)[0]!r}; known are: {', '.join(fields)}"
        )
    table, file = settings_file()
    own = _table(table, section, f"op_tools.{section}", file)
    in_file = {**{k: v for k, v in table.items() if not isinstance(v, dict)}, **own}
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for name, field in fields.items():
        env = field.metadata["env"]
        if (given := arguments.get(name)) is not None:
            checked = isinstance(given, str) and isinstance(field.default, str)
            values[name] = _from_text(field, given, f"argument {name}") if checked else given
            origin = "argument"
        elif env in environ:
            values[name], origin = (
                _from_text(field, environ[env], f"environment variable {env}"),
                f"environment variable {env}",
            )
        elif name in in_file:
            value = in_file[name]
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            values[name], origin = _from_text(field, text, f"{name} in {file}"), file
        else:
            values[name], origin = field.default, "default"
        sources[name] = Source(values[name], origin)
    return schema(**values), sources
