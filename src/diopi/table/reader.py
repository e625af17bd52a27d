"""Reads and checks the table's files."""

from __future__ import annotations

import ast
import csv
import tomllib
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from diopi.table.model import (
    CATEGORIES,
    DTYPE_GROUPS,
    ROLES,
    TOLERANCES,
    Argument,
    Entry,
    Function,
    Table,
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
    "reference",
    "note",
}


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
    groups = values.pop("dtypes").split()
    if wrong := [g for g in groups if g not in DTYPE_GROUPS]:
        raise TableError(f"{where}: unknown dtype groups {wrong}; known are {sorted(DTYPE_GROUPS)}")
    if values["category"] not in CATEGORIES:
        raise TableError(f"{where}: unknown category {values['category']!r}; known are {CATEGORIES}")
    if values["tolerance"] not in TOLERANCES:
        raise TableError(f"{where}: unknown tolerance {values['tolerance']!r}; known are {TOLERANCES}")
    names = {a.name for a in function.arguments}
    if wrong := [a for a in values.get("args", {}) if a not in names]:
        raise TableError(f"{where}: args names {wrong}, but the C function has {sorted(names)}")
    if values.get("scalar") not in {None, *names}:
        raise TableError(
            f"{where}: scalar names {values['scalar']!r}, but the C function has {sorted(names)}"
        )
    if wrong := [a for a, role in values.get("roles", {}).items() if a not in names or role not in ROLES]:
        raise TableError(f"{where}: roles of {wrong} are wrong; arguments are {sorted(names)}, roles {ROLES}")
    for key in ("reference", "when"):
        _check_expression(where, key, values.get(key))
    for name, text in values.get("args", {}).items():
        _check_expression(where, f"args.{name}", text)
    for key in ("aten", "outputs", "resize", "indices"):
        values[key] = tuple(values.get(key, ()))
    return Entry(function=function, source=source, dtypes=tuple(groups), **values)


@cache
def load() -> Table:
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
    return Table(functions, {name: _with_reference(entry, entries) for name, entry in entries.items()})


def _with_reference(entry: Entry, entries: dict[str, Entry]) -> Entry:
    """An in-place form that says nothing else has the reference of the form that is not in place."""
    other = entries.get(entry.name.replace("Inp", "", 1)) if entry.function.in_place else None
    if entry.reference is not None or other is None or other.reference is None:
        return entry
    return replace(entry, reference=other.reference)
