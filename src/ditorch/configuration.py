"""Every setting of this project: its value, where that came from, its variable and what it means."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ditorch.run_tools import ToolName, guess, offered

__all__ = ["COMMON", "Configuration", "Finding", "UnknownTool", "example", "read_all", "text_of"]

COMMON = "op_tools"
DEFAULT = "default"

# What is read from the environment only, by the programs that read it: variable -> (default, meaning).
_VARIABLES: dict[str, dict[str, tuple[str, str]]] = {
    "ditorch": {
        "DITORCH_DEVICE": ("", "the framework that ditorch uses; none: no framework; empty: ditorch chooses"),
        "DITORCH_DISABLE_MOCK": ("0", "1: never map the names of cuda"),
        "DITORCH_SHOW_DEVICE_AS_CUDA": ("1", "0: device.type never equals 'cuda'"),
        "DITORCH_FP32_COLLECTIVES": ("0", "1: sums of half-precision tensors are made in float32"),
    },
    "torch_dipu": {
        "DIPU_DEVICE": (
            "",
            "the vendor: a name, or the path of its library; empty: the best that has a device",
        ),
        "DIPU_ADAPTOR_CONFIG": ("", "rules (convert_config.yaml) applied in front of the vendor's operators"),
        "DIOPI_ADAPTOR_REPORT": ("", "a file that gets what these rules cost, when the process ends"),
        "DIPU_FORCE_FALLBACK_OPS_LIST": (
            "",
            "operators that fall back although DIOPI serves them, with commas",
        ),
        "DIPU_AUTOCOMPARE_OPS_LIST": ("", "operators whose results are compared with the CPU's, with commas"),
        "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS": (
            "",
            "operators that keep torch's own implementation, with commas",
        ),
        "DIPU_DUMP_OP_ARGS": (
            "0",
            "1: print each operator and its DIOPI function, 2: and arguments, 3: and values",
        ),
        "DIPU_LOG_FALLBACK_INFO": ("0", "1: a line for every call that falls back, with the reason"),
        "DIPU_WITH_DIOPI_LIBRARY": ("", "DISABLE: no operator of the vendor is used"),
        "DIPU_MOCK_CUDA": ("1", "0: do not map the names of cuda when torch_dipu or ditorch is imported"),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": ("1", "0: plain `import torch` does not register dipu"),
    },
}
_OURS = re.compile(r"OP_|OPTOOLS_|DITORCH_|DIPU_|AUTOCOMPARE_")
# Variables that hold the name of an operator are shown where one is set.
_PER_OPERATOR = {
    "autocompare": (re.compile(r"\w*AUTOCOMPARE_ERROR_TOLERANCE(_\w+)?"), "atol,rtol of the column allclose"),
    "dtype_cast": (re.compile(r"\w+_OP_DTYPE_CAST_DICT"), "which dtype becomes which, for one operator"),
}


class UnknownTool(Exception):
    """There are no settings of that name."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One setting as it is in force."""

    group: str
    name: str
    value: Any
    default: Any
    origin: str
    variable: str
    meaning: str

    @property
    def changed(self) -> bool:
        """Whether somebody has set it, be it to its default."""
        return self.origin != DEFAULT


@dataclasses.dataclass
class Configuration:
    """All settings, what cannot be used, and what looks like a setting and is none."""

    findings: list[Finding] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def narrowed(self, tool: str | None, changed: bool) -> Configuration:
        """Only one tool's settings, only what was set. Raises UnknownTool."""
        group = None if tool is None else _group(tool)
        kept = [
            finding
            for finding in self.findings
            if (group is None or finding.group in (group, COMMON if _is_tool(group) else group))
            and (finding.changed or not changed)
        ]
        return Configuration(kept, self.problems, self.warnings)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "ok": not self.problems,
            "settings": [
                {key: _plain(value) for key, value in vars(finding).items()} | {"changed": finding.changed}
                for finding in self.findings
            ],
            "problems": self.problems,
            "warnings": self.warnings,
        }


def _group(word: str) -> str:
    known = {name: tool.section for tool in offered() for name in (tool.name, tool.section)}
    known |= {name: name for name in (COMMON, *_VARIABLES)}
    if word not in known:
        names = [*(tool.name for tool in offered()), COMMON, *_VARIABLES]
        raise UnknownTool(
            f"--tool {word}: nothing has that name.{guess(word, known)} Known: {', '.join(names)}."
        )
    return known[word]


def _is_tool(group: str) -> bool:
    return any(tool.section == group for tool in offered())


def read_all(environment: Mapping[str, str] | None = None) -> Configuration:
    """Read every setting as the tools would; what they would refuse becomes a problem."""
    from op_tools.settings import SettingError, settings_file

    environment = os.environ if environment is None else environment
    found = Configuration()
    for group, variables in _VARIABLES.items():
        found.findings += _of_environment(group, variables, environment)
    found.findings += _of_environment("torch_dipu", _vendor_variables(), environment)
    found.problems += _wrong_choices(environment)
    try:
        table, file = settings_file()
    except SettingError as error:
        found.problems.append(str(error))
        found.problems.append("No setting of op_tools can be read until this is put right.")
    else:
        found.problems += _unknown_keys(table, file)
        for group, fields in _groups().items():
            _read_group(found, group, fields, file, environment)
    found.warnings += _strangers(found, environment)
    return found


def _of_environment(
    group: str, variables: Mapping[str, tuple[str, str]], environment: Mapping[str, str]
) -> Iterator[Finding]:
    for name, (default, meaning) in variables.items():
        origin = f"environment variable {name}" if name in environment else DEFAULT
        yield Finding(group, name, environment.get(name, default), default, origin, name, meaning)


def _wrong_choices(environment: Mapping[str, str]) -> Iterator[str]:
    """What `import ditorch` would refuse or ignore."""
    from ditorch.selection import UnknownDeviceError, choose, framework_wanted, wrong_switches

    if environment.get("DITORCH_DEVICE", "").strip() and framework_wanted(environment):
        try:
            choose(environment=environment)
        except UnknownDeviceError as error:
            yield str(error)
    yield from wrong_switches(environment)


def _vendor_variables() -> dict[str, tuple[str, str]]:
    """What the vendors of dipu declare beside their libraries."""
    variables: dict[str, tuple[str, str]] = {}
    for point in entry_points(group="diopi.vendors"):
        try:
            variables |= dict(getattr(point.load(), "settings", None) or {})
        except Exception:  # a vendor that cannot be imported has no settings; `dipu doctor` tells
            continue
    return variables


# -- op_tools --------------------------------------------------------------------------------------------------


def _common() -> dict[str, dataclasses.Field[Any]]:
    from op_tools.settings import ToolSettings

    return {field.name: field for field in dataclasses.fields(ToolSettings)}


def _fields(tool: ToolName) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(tool.load().schema)}


def _groups() -> dict[str, dict[str, dataclasses.Field[Any]]]:
    """The settings of all tools, then of each."""
    return {COMMON: _common()} | {tool.section: _fields(tool) for tool in offered()}


def _read_group(
    found: Configuration,
    group: str,
    fields: Mapping[str, dataclasses.Field[Any]],
    file: str,
    environment: Mapping[str, str],
) -> None:
    from op_tools.settings import SettingError

    common = {} if group == COMMON else {f.name: f for f in found.findings if f.group == COMMON}
    for name, field in fields.items():
        try:
            value, origin = _read_one(field, group, environment)
        except SettingError as error:
            if str(error) not in found.problems:
                found.problems.append(str(error))
            continue
        origin = _with_line(origin, file, group, name)
        shared = common.get(name)
        if shared is not None and (shared.value, shared.origin) == (value, origin):
            continue  # said once, for all tools
        found.findings.append(
            Finding(group, name, value, field.default, origin, field.metadata["env"], field.metadata["help"])
        )
    if group in _PER_OPERATOR:
        pattern, meaning = _PER_OPERATOR[group]
        variables = {name: ("", meaning) for name in sorted(environment) if pattern.fullmatch(name)}
        found.findings += _of_environment(group, variables, environment)


def _read_one(field: dataclasses.Field[Any], section: str, environment: Mapping[str, str]) -> tuple[Any, str]:
    """One setting through the reader of the tools, so that a bad one does not hide the others."""
    from op_tools.settings import Names, read, setting

    copy = setting(field.default, **field.metadata)
    schema = dataclasses.make_dataclass("OneSetting", [(field.name, Any, copy)], frozen=True)
    _, sources = read(schema, section, {}, environment)
    source = sources[field.name]
    if field.name in ("list", "disable_list"):
        Names(listed=str(source.value), listed_source=f"{section}.{field.name} ({source.origin})")
    return source.value, source.origin


def _with_line(origin: str, file: str, section: str, name: str) -> str:
    """`ditorch.toml:12` for what came from the file."""
    if not file or origin != file:
        return origin
    line = _line_of(file, section, name) or _line_of(file, COMMON, name)
    shown = os.path.relpath(file)
    return f"{shown}:{line}" if line else shown


def _line_of(file: str, section: str, name: str) -> int | None:
    """The line of a key, where it is written as `key = value` below the header of its table."""
    headers = {section, f"op_tools.{section}", f"tool.ditorch.op_tools.{section}"}
    if section == COMMON:
        headers = {"op_tools", "tool.ditorch.op_tools"}
    table = ""
    for number, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1):
        header = re.match(r"\s*\[([^\[\]]+)\]", line)
        if header:
            table = header[1].replace(" ", "").replace('"', "")
        elif table in headers and re.match(rf'\s*"?{re.escape(name)}"?\s*=', line):
            return number
    return None


def _unknown_keys(table: Mapping[str, Any], file: str) -> Iterator[str]:
    """What the settings file says and nobody reads."""
    groups = _groups()
    yield from _unknown_tables()
    everything = {name for fields in groups.values() for name in fields}
    for key, value in table.items():
        if not isinstance(value, dict):
            # A tool that is no table is refused where its settings are read.
            if key not in everything and (key == COMMON or key not in groups):
                yield f"{file}: unknown key {key!r} in [op_tools].{guess(key, (*everything, *groups))}"
        elif key not in groups or key == COMMON:
            known = [name for name in groups if name != COMMON]
            yield f"{file}: unknown table [op_tools.{key}].{guess(key, known)} Known: {', '.join(known)}."
        else:
            for name in value:
                if name not in groups[key]:
                    yield f"{file}: unknown key {name!r} in [op_tools.{key}].{guess(name, groups[key])}"


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
            if key != COMMON:
                where = ".".join((*path, key))
                yield f"{file}: unknown table or key [{where}].{guess(key, (COMMON,))} Only op_tools is read."


def _strangers(found: Configuration, environment: Mapping[str, str]) -> Iterator[str]:
    """Variables that look like ours and are close to one that is."""
    known = {finding.variable for finding in found.findings}
    known |= {field.metadata["env"] for fields in _groups().values() for field in fields.values()}
    for name in sorted(environment):
        if name not in known and _OURS.match(name) and (close := guess(name, known)):
            yield f"{name} is set but is no setting of this version.{close}"


# -- an example ------------------------------------------------------------------------------------------------


def example() -> str:
    """A ditorch.toml with every setting at its default, and what each means."""
    lines = [
        "# Settings of the operator tools; put this file into the folder the program is started in.",
        "# An argument of a tool and an environment variable are stronger than this file.",
        "",
    ]
    common = _common()
    for group, fields in _groups().items():
        own = {name: field for name, field in fields.items() if group == COMMON or name not in common}
        lines += ["[op_tools]" if group == COMMON else f"[op_tools.{group}]"]
        for name, field in own.items():
            lines += [f"# {field.metadata['help']} ({field.metadata['env']})", _toml(name, field.default)]
        lines.append("")
    lines.append("# These are environment variables only:")
    for variables in (*_VARIABLES.values(), _vendor_variables()):
        lines += [f"#   {name}={default}  {meaning}" for name, (default, meaning) in variables.items()]
    return "\n".join(lines) + "\n"


def _toml(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} =   (not set)"
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    if isinstance(value, int | float):
        return f"{name} = {value!r}"
    return f"{name} = {json.dumps(text_of(value), ensure_ascii=False)}"


def text_of(value: Any) -> str:
    """A value as one would write it in the file."""
    if isinstance(value, set | frozenset):
        value = sorted(value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _plain(value: Any) -> Any:
    """A value that JSON has a form for."""
    return value if value is None or isinstance(value, bool | int | float | str) else text_of(value)
