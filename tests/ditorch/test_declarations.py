"""The code and the declarations of environment variables agree: each is declared once, and read through its declaration."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from _ditorch.configuration import PACKAGES, declared, tool_variables
from dicore.settings import Variable

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
OURS = re.compile(r"(DITORCH|DIOPI|DIPU|DICP|DLINFER|OPTOOLS|OP|AUTOCOMPARE)_[A-Z0-9_]*[A-Z0-9]")
# Macros of the C headers look like variables.
GENERATORS = SRC / "diopi" / "generate"


def variables() -> list[Variable]:
    sections = tool_variables()
    common = sections.pop("op_tools")
    of_tools = [v for fields in sections.values() for name, v in fields.items() if name not in common]
    return [v for owner in declared().values() for v in owner.values()] + list(common.values()) + of_tools


@cache
def python_files() -> dict[Path, ast.Module]:
    files = [*SRC.rglob("*.py"), *(ROOT / "vendors").rglob("*.py")]
    return {
        file: ast.parse(file.read_text(encoding="utf-8")) for file in files if GENERATORS not in file.parents
    }


@cache
def c_names() -> frozenset[str]:
    """Names of ours in the C++ sources, which read the environment by themselves."""
    files = [file for folder in ("csrc", "vendors") for file in (ROOT / folder).rglob("*")]
    texts = [
        file.read_text(encoding="utf-8")
        for file in files
        if file.suffix in (".cpp", ".h", ".cu") and "generated" not in file.parts
    ]
    found = (name for text in texts for name in re.findall(r'"([A-Z_0-9]+)"', text))
    statuses = re.findall(r"(\w+) = \d", (ROOT / "include" / "dipu" / "vendor.h").read_text(encoding="utf-8"))
    return frozenset(name for name in found if OURS.fullmatch(name)) - set(statuses)


def constants(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and OURS.fullmatch(node.value):
            yield node.value


@pytest.mark.parametrize("package", PACKAGES)
def test_a_file_of_declarations_imports_nothing_of_its_package(package: str) -> None:
    tree = python_files().get(SRC / package / "settings.py")
    for node in ast.walk(tree) if tree is not None else ():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert {name.partition(".")[0] for name in names} <= {"dicore", *sys.stdlib_module_names}


def test_every_variable_is_declared_once() -> None:
    names = Counter(variable.name for variable in variables())
    assert len(names) >= 80 and {name for name, times in names.items() if times > 1} == set()
    written: Counter[str] = Counter()
    for tree in python_files().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                position = {"Variable": 0, "setting": 1, "level_setting": 0}.get(node.func.id, len(node.args))
                written.update(
                    name for argument in node.args[position : position + 1] for name in constants(argument)
                )
    assert {name for name, times in written.items() if times > 1} == set()
    assert set(names) - {"TORCH_DEVICE_BACKEND_AUTOLOAD"} == set(written)


def test_every_variable_in_the_code_is_declared() -> None:
    known = variables()
    used = {name: file for file, tree in python_files().items() for name in constants(tree)}
    used |= dict.fromkeys(c_names(), ROOT / "csrc")
    assert {name: file for name, file in used.items() if not any(v.matches(name) for v in known)} == {}
    assert {"DIPU_DUMP_OP_ARGS", "DIPU_HOST_MEMORY"} <= c_names()


def _is_environment(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id in ("environ", "environment")
    )


def _read_names(tree: ast.AST) -> Iterator[str]:
    """Names of ours that are read from the environment itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environment(node.value):
            yield from constants(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            called, of = node.func.attr, node.func.value
            if called == "getenv" or (called == "get" and _is_environment(of)):
                yield from constants(node.args[0])


def test_python_reads_variables_through_their_declarations() -> None:
    direct = {str(file.relative_to(ROOT)): [*_read_names(tree)] for file, tree in python_files().items()}
    assert {file: names for file, names in direct.items() if names} == {}
    example = "import os; os.environ.get('DIPU_X'); os.environ['DIPU_Y']; os.getenv('DIPU_Z'); os.environ['DIPU_W'] = ''"
    assert set(_read_names(ast.parse(example))) == {"DIPU_X", "DIPU_Y", "DIPU_Z"}


def _uses() -> set[str]:
    """Declarations that other files import or name, as `package.NAME`; and variables that are looked up by name."""
    found: set[str] = set()
    for file, tree in python_files().items():
        if file.name == "settings.py" and file.parent.parent == SRC:
            functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
            found |= {name for function in functions for name in constants(function)}
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith(".settings"):
                found |= {f"{(node.module or '').partition('.')[0]}.{alias.name}" for alias in node.names}
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "settings"
            ):
                found.add(f"{file.relative_to(SRC).parts[0]}.{node.attr}")
        found |= set(constants(tree))
    return found


def test_every_declared_variable_is_read() -> None:
    uses = _uses() | c_names()
    for package in PACKAGES:
        tree = python_files().get(SRC / package / "settings.py")
        for statement in tree.body if tree is not None else ():
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
                (target,) = (node.id for node in statement.targets if isinstance(node, ast.Name))
                for name in constants(statement.value.args[0]):
                    assert f"{package}.{target}" in uses or name in uses, f"nothing reads {name}"
    assert set(declared()["host"]) <= c_names()


def test_every_setting_of_a_tool_is_read() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in (SRC / "op_tools").rglob("*.py"))
    for section, fields in tool_variables().items():
        for name in set(fields) - {"list", "disable_list"}:
            assert re.search(rf"settings\.{name}\b", text), f"{section}.{name}"
