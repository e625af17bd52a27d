"""The settings schema: every environment variable is declared once, by its owner, with type, default and meaning.

A package declares its variables in `<package>/settings.py` as `Variable`s; that file imports nothing of its package, so that
`declarations` can read it without importing the package, whose import may register a device. The code that needs a value asks
the declaration for it. Settings that also come as arguments and from `ditorch.toml` are fields of a schema: a frozen
dataclass whose fields are made by `setting`; `read` fills it in and remembers where each value came from.
A bad value is an error that names its source.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dicore.suggestions import did_you_mean

__all__ = [
    "PREFIXES",
    "SettingError",
    "Source",
    "Variable",
    "declarations",
    "flag",
    "one_of",
    "read",
    "setting",
    "settings_file",
    "size",
    "text_of",
    "unknown_variables",
    "variables_of",
]

PREFIXES = ("DITORCH_", "DIOPI_", "DIPU_", "DICP_", "DLINFER_", "OP_", "OPTOOLS_", "AUTOCOMPARE_")
"""What the names of all our variables begin with."""

Schema = TypeVar("Schema")


class SettingError(ValueError):
    """A setting has a value that cannot be used; the message says which, where it came from and what is expected."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the value of a setting came from."""

    value: Any
    origin: str


@dataclasses.dataclass(frozen=True)
class Variable:
    """The declaration of an environment variable. Set to blanks only, it counts as not set."""

    name: str
    default: Any
    help: str
    """What it does; choices and names of code in backticks, which tables on a console leave out."""
    parse: Callable[[str], Any] = str.strip
    """Makes the value of the text; raises ValueError with what was expected."""
    dynamic: bool = False
    """Whether a change is followed while the program runs; other variables are read once."""
    unset: str = ""
    """What holds when it is not set, where the default alone does not say it."""
    pattern: str = ""
    """Of a family of variables with names of operators or dtypes in theirs: what such a name fully matches."""

    def member(self, name: str) -> Variable:
        """A variable of this family."""
        return dataclasses.replace(self, name=name)

    def is_set(self, environ: Mapping[str, str] | None = None) -> bool:
        """Whether the environment says anything about it."""
        return bool(self.text(environ))

    def text(self, environ: Mapping[str, str] | None = None) -> str:
        """What the environment says, without blanks around it; empty if nothing."""
        return (os.environ if environ is None else environ).get(self.name, "").strip()

    def get(self, environ: Mapping[str, str] | None = None) -> Any:
        """The value in force. Raises SettingError for a text that cannot be read."""
        text = self.text(environ)
        if not text:
            return self.default
        try:
            return self.parse(text)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise SettingError(f"environment variable {self.name}: {error}") from error

    def get_or_default(self, environ: Mapping[str, str] | None = None) -> Any:
        """The value in force, or the default where the text cannot be read: for imports, which must not fail."""
        try:
            return self.get(environ)
        except SettingError:
            return self.default

    def problem(self, environ: Mapping[str, str] | None = None) -> str:
        """Why the text that is set cannot be read; empty if it can."""
        try:
            self.get(environ)
        except SettingError as error:
            return str(error)
        return ""

    @property
    def default_text(self) -> str:
        """The default as one would write it."""
        if isinstance(self.default, bool):
            return str(int(self.default))
        if self.parse is size and isinstance(self.default, int):
            return _text_of_size(self.default)
        return "" if self.default is None else text_of(self.default)

    @property
    def plain_help(self) -> str:
        """The meaning for a console."""
        return self.help.replace("`", "")

    def matches(self, name: str) -> bool:
        """Whether a variable of that name is this one, or one of this family."""
        return name == self.name or bool(self.pattern and re.fullmatch(self.pattern, name))


def text_of(value: Any) -> str:
    """A value as one would write it in the environment or the file."""
    if isinstance(value, set | frozenset):
        value = sorted(value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


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


def _text_of_size(number: int) -> str:
    """`1G`: whole units of what `size` reads."""
    power = 0
    while number and number % 1024 == 0 and power < 4:
        number, power = number // 1024, power + 1
    return f"{number}{' KMGT'[power].strip()}"


def one_of(*choices: str) -> Callable[[str], str]:
    """The reader of a setting that takes one of a few words."""
    by_lower = {choice.lower(): choice for choice in choices}

    def read_choice(text: str) -> str:
        choice = by_lower.get(text.strip().lower())
        if choice is None:
            raise ValueError(f"expected {' or '.join(choices)}, got {text!r}")
        return choice

    return read_choice


# -- declarations ----------------------------------------------------------------------------------------------


def declarations(package: str) -> dict[str, Variable]:
    """What `<package>/settings.py` declares, by name; nothing where there is no such package or file.

    The file is run by itself, and the package is not imported.
    """
    module = sys.modules.get(f"{package}.settings") or _settings_module(package)
    named = vars(module).items() if module is not None else ()
    return {v.name: v for name, v in named if isinstance(v, Variable) and not name.startswith("_")}


@functools.cache
def _settings_module(package: str) -> Any:
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        file = Path(folder, "settings.py")
        spec = importlib.util.spec_from_file_location(f"_settings_of_{package}", file)
        if not file.is_file() or spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look for their module
        spec.loader.exec_module(module)
        return module
    return None


def unknown_variables(
    environ: Mapping[str, str], declared: Iterable[Variable], prefixes: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Variables that are set, look like ours and are none: the name, and ` Did you mean ...?` where one is close."""
    declared = list(declared)
    names = [variable.name for variable in declared]
    for name in sorted(environ):
        if name.startswith(prefixes) and not any(variable.matches(name) for variable in declared):
            yield name, did_you_mean(name, names, cutoff=0.8)


# -- schemas ---------------------------------------------------------------------------------------------------


def setting(
    default: Any, env: str, parse: Callable[[str], Any] = str, help: str = "", unset: str = ""
) -> Any:
    """A field of a schema, with the environment variable that sets it and the reader of its text."""
    variable = Variable(env, default, help, parse, dynamic=True, unset=unset)
    return dataclasses.field(default=default, metadata={"variable": variable})


def variables_of(schema: type[Any]) -> dict[str, Variable]:
    """The variable of each field of a schema."""
    return {field.name: field.metadata["variable"] for field in dataclasses.fields(schema)}


@functools.lru_cache(maxsize=8)
def _file(folder: str, root: str, _stamp: tuple[float, ...]) -> tuple[dict[str, Any], str]:
    import tomllib

    for name, path in (("ditorch.toml", (root,)), ("pyproject.toml", ("tool", "ditorch", root))):
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


def settings_file(root: str) -> tuple[dict[str, Any], str]:
    """That table of ditorch.toml or pyproject.toml of the working folder, and the file's name."""
    folder = Path.cwd()
    stamps = tuple(
        file.stat().st_mtime if (file := folder / name).is_file() else 0.0
        for name in ("ditorch.toml", "pyproject.toml")
    )
    return _file(str(folder), root, stamps)


def _from_text(variable: Variable, text: str, origin: str) -> Any:
    try:
        return variable.parse(text)
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
    """Fill in a schema: argument, then environment, then file, then default; the second result has each value's source.

    `section` is the table of the file, such as `op_tools.capture`; what it does not have is looked up in the table above.
    """
    environ = os.environ if environ is None else environ
    variables = variables_of(schema)
    root, _, name_of_section = section.partition(".")
    for unknown in sorted(set(arguments) - set(variables)):
        raise SettingError(
            f"{name_of_section}: unknown setting {unknown!r}.{did_you_mean(unknown, variables)} "
            f"Known are: {', '.join(variables)}."
        )
    table, file = settings_file(root)
    own = _table(table, name_of_section, section, file)
    in_file = {**{k: v for k, v in table.items() if not isinstance(v, dict)}, **own}
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for name, variable in variables.items():
        if (given := arguments.get(name)) is not None:
            # `max_bytes="100M"` is as good as the number.
            text = isinstance(given, str)
            values[name] = _from_text(variable, given, f"argument {name}") if text else given
            origin = "argument"
        elif variable.name in environ:
            origin = f"environment variable {variable.name}"
            values[name] = _from_text(variable, environ[variable.name], origin)
        elif name in in_file:
            value = in_file[name]
            values[name], origin = _from_text(variable, text_of(value), f"{name} in {file}"), file
        else:
            values[name], origin = variable.default, "default"
        sources[name] = Source(values[name], origin)
    return schema(**values), sources
