"""Reads and checks the table's files."""

from __future__ import annotations

import ast
import csv
import tomllib
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from diopi.table.schema import (
    CATEGORIES,
    DTYPE_GROUPS,
    ROLES,
    TOLERANCES,
    Argument,
    Entry,
    Function,
    Map,
    OperatorTable,
    TableError,
)

_KEYS = {
    "aten",
    "category",
    "dtypes",
    "tolerance",
    "same",
    "scalar",
    "commutes",
    "when",
    "otherwise",
    "outputs",
    "resize",
    "indices",
    "roles",
    "args",
    "maps",
    "reference",
    "note",
}


# What a further map may change.
_MAP_KEYS = {"aten", "args", "when", "dtypes", "outputs", "resize"}


def _argument(text: str, position: int) -> Argument:
    """`const char* mode` -> type and name; a pointer without a name gets one."""
    text = text.strip()
    ctype, _, name = text.rpartition(" ")
    if not ctype or name.endswith("*"):
        return Argument(text, f"arg{position}")
    return Argument(ctype, name)


def _functions() -> dict[str, Function]:
    text = (files("diopi.table") / "interface.tsv").read_text(encoding="utf-8")
    functions: dict[str, Function] = {}
    for row in csv.reader(text.splitlines()[1:], delimiter="\t", quoting=csv.QUOTE_NONE):
        header, name, returns, attributes, count, arguments = row
        parsed = tuple(_argument(a, i) for i, a in enumerate(arguments.split(";")) if a.strip())
        if len(parsed) != int(count):
            raise TableError(f"interface.tsv: {name}: {count} arguments announced, {len(parsed)} found")
        weak = attributes.split(",")
        functions[name] = Function(header, name, returns, "weak" in weak, "deprecated" in weak, parsed)
    return functions


def _check_expression(where: str, key: str, text: str | None) -> None:
    try:
        ast.parse(text or "None", mode="eval")
    except SyntaxError as error:
        raise TableError(f"{where}: {key} is not a Python expression ({error.msg}): {text}") from None


def _entry(source: str, function: Function, defaults: dict[str, Any], given: dict[str, Any]) -> Entry:
    where = f"{source}: {function.name}"
    if unknown := set(given) - _KEYS:
        raise TableError(f"{where}: unknown keys {sorted(unknown)}; known are {sorted(_KEYS)}")
    values = {**defaults, **given}
    dtypes = _dtype_groups(where, values.pop("dtypes"))
    if values["category"] not in CATEGORIES:
        raise TableError(f"{where}: unknown category {values['category']!r}; known are {CATEGORIES}")
    if values["tolerance"] not in TOLERANCES:
        raise TableError(f"{where}: unknown tolerance {values['tolerance']!r}; known are {TOLERANCES}")
    names = {a.name for a in function.arguments}
    _check_arguments(where, function, values.get("args", {}))
    if values.get("scalar") not in {None, *names}:
        raise TableError(
            f"{where}: scalar names {values['scalar']!r}, but the C function has {sorted(names)}"
        )
    if wrong := [a for a, role in values.get("roles", {}).items() if a not in names or role not in ROLES]:
        raise TableError(f"{where}: roles of {wrong} are wrong; arguments are {sorted(names)}, roles {ROLES}")
    for key in ("reference", "when"):
        _check_expression(where, key, values.get(key))
    for key in ("aten", "outputs", "resize", "indices"):
        values[key] = tuple(values.get(key, ()))
    values["maps"] = tuple(_map(where, function, further) for further in values.get("maps", ()))
    entry = Entry(function=function, source=source, dtypes=dtypes, **values)
    if len(set(entry.overloads)) != len(entry.overloads):
        raise TableError(f"{where}: an overload is named twice among {entry.overloads}")
    return entry


def _map(where: str, function: Function, given: dict[str, Any]) -> Map:
    """One of an entry's `maps`."""
    if unknown := set(given) - _MAP_KEYS:
        raise TableError(f"{where}: unknown keys {sorted(unknown)} in maps; known are {sorted(_MAP_KEYS)}")
    if not given.get("aten"):
        raise TableError(f"{where}: each of maps must name its overloads in `aten`")
    _check_arguments(where, function, given.get("args", {}))
    _check_expression(where, "maps.when", given.get("when"))
    changes: dict[str, Any] = {key: tuple(given[key]) for key in ("outputs", "resize") if key in given}
    if "dtypes" in given:
        changes["dtypes"] = _dtype_groups(where, given["dtypes"])
    if "when" in given:
        changes["when"] = given["when"]
    return Map(tuple(given["aten"]), given.get("args", {}), changes)


def _dtype_groups(where: str, text: str) -> tuple[str, ...]:
    groups = tuple(text.split())
    if wrong := [g for g in groups if g not in DTYPE_GROUPS]:
        raise TableError(f"{where}: unknown dtype groups {wrong}; known are {sorted(DTYPE_GROUPS)}")
    return groups


def _check_arguments(where: str, function: Function, args: dict[str, str]) -> None:
    names = {a.name for a in function.arguments}
    if wrong := [a for a in args if a not in names]:
        raise TableError(f"{where}: args names {wrong}, but the C function has {sorted(names)}")
    for name, text in args.items():
        _check_expression(where, f"args.{name}", text)


@cache
def load() -> OperatorTable:
    """The table, checked; TableError if a file is wrong."""
    functions = _functions()
    entries: dict[str, Entry] = {}
    for file in sorted(files("diopi.table").iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".toml"):
            continue
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        for name, given in document["op"].items():
            if name not in functions:
                raise TableError(f"{file.name}: {name} is not a function of the interface")
            if name in entries:
                raise TableError(f"{file.name}: {name} is declared again, first in {entries[name].source}")
            entries[name] = _entry(file.name, functions[name], document["defaults"], given)
    return OperatorTable(
        functions, {name: _with_reference(entry, entries) for name, entry in entries.items()}
    )


def _with_reference(entry: Entry, entries: dict[str, Entry]) -> Entry:
    """An in-place form that says nothing else has the reference of the form that is not in place."""
    other = entries.get(entry.name.replace("Inp", "", 1)) if entry.function.in_place else None
    if entry.reference is not None or other is None or other.reference is None:
        return entry
    return replace(entry, reference=other.reference)
