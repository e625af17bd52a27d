"""`ditorch config`: every setting of this project, its value, where that came from, its variable and what it means.

Settings are declared by their owners: the packages (`<package>/settings.py`), the vendors of dipu, the operator tools.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _ditorch.run_tools import offered
from dicore.console import make_table
from dicore.files import toml_lines
from dicore.settings import (
    PREFIXES,
    SettingError,
    Variable,
    declarations,
    read,
    setting,
    settings_file,
    text_of,
    unknown_variables,
    variables_of,
)
from dicore.suggestions import did_you_mean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "ConfigEntry",
    "Configuration",
    "UnknownGroup",
    "declared",
    "example",
    "read_all",
    "show",
    "tool_variables",
]

TOOLS = "op_tools"
PACKAGES = ("_ditorch", "diopi", "torch_dipu", "dicp", "dlinfer", TOOLS)
DEFAULT = "default"


class UnknownGroup(Exception):
    """There are no settings of that name."""


@dataclasses.dataclass(frozen=True)
class ConfigEntry:
    """One setting as it is in force."""

    group: str
    name: str
    value: Any
    default: Any
    origin: str
    variable: str
    meaning: str
    dynamic: bool = False

    @property
    def changed(self) -> bool:
        """Whether somebody has set it, be it to its default."""
        return self.origin != DEFAULT


@dataclasses.dataclass
class Configuration:
    """All settings, what cannot be used, and what looks like a setting and is none."""

    entries: list[ConfigEntry] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def narrowed(self, group: str | None, changed: bool) -> Configuration:
        """Only the settings of one tool, package or vendor, only what was set. Raises UnknownGroup."""
        groups = None if group is None else _groups_named(group)
        kept = [
            entry
            for entry in self.entries
            if (groups is None or entry.group in groups) and (entry.changed or not changed)
        ]
        return Configuration(kept, self.problems, self.warnings)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "ok": not self.problems,
            "settings": [
                {key: _plain(value) for key, value in vars(entry).items()} | {"changed": entry.changed}
                for entry in self.entries
            ],
            "problems": self.problems,
            "warnings": self.warnings,
        }


# -- what is declared ------------------------------------------------------------------------------------------


def declared() -> dict[str, dict[str, Variable]]:
    """The variables of packages and of vendors, by owner: those that only the environment sets."""
    groups = (
        _vendors() | {package.removeprefix("_"): declarations(package) for package in PACKAGES} | _compilers()
    )
    return {owner: variables for owner, variables in groups.items() if variables}


def _vendors() -> dict[str, dict[str, Variable]]:
    """What the vendors of dipu declare beside their libraries."""
    groups = {}
    for point in entry_points(group="diopi.vendors"):
        try:
            groups[point.name] = {variable.name: variable for variable in point.load().settings}
        except Exception:  # a vendor that cannot be imported has no settings; `dipu doctor` tells
            continue
    return groups


def _compilers() -> dict[str, dict[str, Variable]]:
    """What compile backends of dicp declare in their folders. `dicp doctor` imports those of other packages and asks them."""
    points = entry_points(group="torch_dynamo_backends")
    return {point.name: declarations(point.module) for point in points if point.module.startswith("dicp.")}


def tool_variables() -> dict[str, dict[str, Variable]]:
    """The settings of all tools, then of each, by section and name; the file and arguments set them, too."""
    from op_tools import registry
    from op_tools.settings import ToolSettings

    schemas = {TOOLS: ToolSettings} | {tool.section: tool.schema for tool in registry.tools()}
    return {section: variables_of(schema) for section, schema in schemas.items()}


def _groups_named(word: str) -> set[str]:
    """The groups that a name means: a tool and what all tools have; a device and what it stands on."""
    sections = {name: tool.section for tool in offered() for name in (tool.command_name, tool.section)}
    owners = declared()
    if word in sections:
        return {sections[word], TOOLS}
    if word == "torch_dipu":
        return {word, "diopi", *_vendors()}
    if word in owners:
        return {word}
    names = [*(tool.command_name for tool in offered()), *owners]
    raise UnknownGroup(
        f"--tool {word}: nothing has that name.{did_you_mean(word, (*sections, *owners), most=2)} "
        f"Known: {', '.join(names)}."
    )


# -- what is in force ------------------------------------------------------------------------------------------


def read_all(environ: Mapping[str, str] | None = None) -> Configuration:
    """Read every setting as its reader would; what would be refused becomes a problem."""
    environ = os.environ if environ is None else environ
    found = Configuration()
    for group, variables in declared().items():
        for variable in _with_members(variables, environ):
            found.entries.append(_from_environment(group, variable, environ))
            found.problems += filter(None, [variable.problem(environ)])
    found.problems += _wrong_device(environ)
    try:
        table, file = settings_file(TOOLS)
    except SettingError as error:
        found.problems.append(str(error))
        found.problems.append("No setting of op_tools can be read until this is put right.")
    else:
        found.problems += _unknown_keys(table, file)
        for section, variables in tool_variables().items():
            _read_section(found, section, variables, file, environ)
    owners = (*declared().values(), *tool_variables().values())
    every = [variable for owner in owners for variable in owner.values()]
    found.warnings += [
        f"{name} is set but is no setting of this version.{hint}"
        for name, hint in unknown_variables(environ, every, PREFIXES)
        if hint
    ]
    return found


def _with_members(variables: Mapping[str, Variable], environ: Mapping[str, str]) -> Iterator[Variable]:
    """Each variable, and those of its family that are set: for one operator, for one dtype."""
    for variable in variables.values():
        yield variable
        names = sorted(name for name in environ if variable.pattern and variable.matches(name))
        yield from (variable.member(name) for name in names if name != variable.name)


def _from_environment(group: str, variable: Variable, environ: Mapping[str, str]) -> ConfigEntry:
    name, default = variable.name, variable.default_text
    origin = f"environment variable {name}" if name in environ else DEFAULT
    value = environ.get(name, default)
    return ConfigEntry(group, name, value, default, origin, name, variable.plain_help, variable.dynamic)


def _wrong_device(environ: Mapping[str, str]) -> Iterator[str]:
    """What `import ditorch` would refuse."""
    from _ditorch.selection import UnknownDeviceError, choose, framework_wanted
    from _ditorch.settings import DEVICE

    if DEVICE.is_set(environ) and framework_wanted(environ):
        try:
            choose(environment=environ)
        except UnknownDeviceError as error:
            yield str(error)


def _read_section(
    found: Configuration,
    section: str,
    variables: Mapping[str, Variable],
    file: str,
    environ: Mapping[str, str],
) -> None:
    common = {} if section == TOOLS else {e.name: e for e in found.entries if e.group == TOOLS}
    for name, variable in variables.items():
        try:
            value, origin = _read_one(name, variable, section, environ)
        except SettingError as error:
            if str(error) not in found.problems:
                found.problems.append(str(error))
            continue
        origin = _with_line(origin, file, section, name)
        shared = common.get(name)
        if shared is not None and (shared.value, shared.origin) == (value, origin):
            continue  # said once, for all tools
        entry = ConfigEntry(
            section, name, value, variable.default, origin, variable.name, variable.plain_help, True
        )
        found.entries.append(entry)


def _read_one(name: str, variable: Variable, section: str, environ: Mapping[str, str]) -> tuple[Any, str]:
    """One setting through the reader of the tools, so that a bad one does not hide the others."""
    from op_tools.settings import NameFilter

    field = setting(variable.default, variable.name, variable.parse)
    schema = dataclasses.make_dataclass("OneSetting", [(name, Any, field)], frozen=True)
    _, sources = read(schema, f"{TOOLS}.{section}", {}, environ)
    source = sources[name]
    if name in ("list", "disable_list"):
        NameFilter(listed=str(source.value), listed_source=f"{section}.{name} ({source.origin})")
    return source.value, source.origin


def _with_line(origin: str, file: str, section: str, name: str) -> str:
    """`ditorch.toml:12` for what came from the file."""
    if not file or origin != file:
        return origin
    tables = [f"{TOOLS}.{section}", section, TOOLS]  # what all tools have stands above their own tables
    lines = toml_lines(Path(file).read_text(encoding="utf-8"))
    found = (lines.get(f"{above}{table}.{name}") for table in tables for above in ("", "tool.ditorch."))
    line = next(filter(None, found), None)
    shown = os.path.relpath(file)
    return f"{shown}:{line}" if line else shown


def _unknown_keys(table: Mapping[str, Any], file: str) -> Iterator[str]:
    """What the settings file says and nobody reads."""
    sections = tool_variables()
    yield from _unknown_tables()
    everything = {name for variables in sections.values() for name in variables}
    for key, value in table.items():
        if not isinstance(value, dict):
            # A tool that is no table is refused where its settings are read.
            if key not in everything and (key == TOOLS or key not in sections):
                hint = did_you_mean(key, (*everything, *sections))
                yield f"{file}: unknown key {key!r} in [op_tools].{hint}"
        elif key not in sections or key == TOOLS:
            tables = [name for name in sections if name != TOOLS]
            hint = did_you_mean(key, tables)
            yield f"{file}: unknown table [op_tools.{key}].{hint} Known: {', '.join(tables)}."
        else:
            for name in value:
                if name not in sections[key]:
                    hint = did_you_mean(name, sections[key])
                    yield f"{file}: unknown key {name!r} in [op_tools.{key}].{hint}"


def _unknown_tables() -> Iterator[str]:
    """Tables beside op_tools, where only op_tools is read: a misspelt header would hide all that is below it."""
    import tomllib

    for name, path in (("ditorch.toml", ()), ("pyproject.toml", ("tool", "ditorch"))):
        file = Path.cwd() / name
        if not file.is_file():
            continue
        try:
            table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError):
            continue  # of the file that is not used: the other one has been read
        for key in path:
            table = table.get(key, {}) if isinstance(table, dict) else {}
        for key in table if isinstance(table, dict) else ():
            if key != TOOLS:
                where = ".".join((*path, key))
                hint = did_you_mean(key, (TOOLS,))
                yield f"{file}: unknown table or key [{where}].{hint} Only op_tools is read."


# -- an example ------------------------------------------------------------------------------------------------


def example() -> str:
    """A ditorch.toml with every setting at its default, and what each means."""
    lines = [
        "# Settings of the operator tools; put this file into the folder the program is started in.",
        "# An argument of a tool and an environment variable are stronger than this file.",
        "",
    ]
    sections = tool_variables()
    for section, variables in sections.items():
        own = {n: v for n, v in variables.items() if section == TOOLS or n not in sections[TOOLS]}
        lines += ["[op_tools]" if section == TOOLS else f"[op_tools.{section}]"]
        for name, variable in own.items():
            lines += [f"# {variable.plain_help} ({variable.name})", _toml(name, variable.default)]
        lines.append("")
    lines.append("# These are environment variables only:")
    for variables in declared().values():
        lines += [f"#   {v.name}={v.default_text}  {v.plain_help}" for v in variables.values()]
    return "\n".join(lines) + "\n"


def _toml(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} =   (not set)"
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    if isinstance(value, int | float):
        return f"{name} = {value!r}"
    return f"{name} = {json.dumps(text_of(value), ensure_ascii=False)}"


def _plain(value: Any) -> Any:
    """A value that JSON has a form for."""
    return value if value is None or isinstance(value, bool | int | float | str) else text_of(value)


# -- tables ----------------------------------------------------------------------------------------------------


def show(found: Configuration, console: Console) -> None:
    """One table for each owner; what was set stands out."""
    for group, entries in groupby(found.entries, key=lambda entry: entry.group):
        console.print(_table("op_tools: all tools" if group == TOOLS else group, list(entries)))
    if not found.entries:
        console.print("Every setting is at its default.")


def _table(title: str, entries: list[ConfigEntry]) -> Table:
    from rich.markup import escape

    table = make_table(title=title, width=100)
    in_environment_only = all(entry.name == entry.variable for entry in entries)
    if not in_environment_only:
        table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold", ratio=3)
    table.add_column("from", overflow="fold", ratio=3)
    table.add_column("variable and meaning", overflow="fold", ratio=5)
    for entry in entries:
        # The variable has its own column.
        origin = entry.origin.replace(f" {entry.variable}", "")
        cells = [_cell(entry.value), origin, f"{entry.variable}\n{entry.meaning}"]
        if not in_environment_only:
            cells.insert(0, entry.name)
        table.add_row(*map(escape, cells), style="bold" if entry.changed else None, end_section=True)
    return table


def _cell(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return text_of(value) or "empty"
