"""The operator tools of this installation. A tool is one file; nothing else lists it.

A file in `op_tools/tools`, or in a folder that OP_TOOLS_PATH names, is a tool when it defines a subclass of
`op_tools.tool.Tool` with a `section`. What the class says of itself (names, result file, how its rows are to be read) is
what `ditorch run`, `ditorch config`, apply_feature, `open_run`, the gates and the report know of it.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from typing import TYPE_CHECKING

from op_tools import tools as package
from op_tools.settings import PATH

if TYPE_CHECKING:
    from op_tools.tool import Tool

__all__ = ["BadTool", "by_section", "tools"]


class BadTool(Exception):
    """A file with a tool cannot be used; the message says why."""


def tools() -> tuple[type[Tool], ...]:
    """The classes of all tools, in the order in which people are shown them."""
    return _tools(PATH.get())


def by_section() -> dict[str, type[Tool]]:
    """The tools by the name of their section, which is also what a run calls their rows."""
    return {tool.section: tool for tool in tools()}


@functools.cache
def _tools(path: str) -> tuple[type[Tool], ...]:
    for folder in filter(None, map(str.strip, path.split(os.pathsep))):
        whole = os.path.abspath(folder)
        if whole not in package.__path__:
            # Their modules are found as those beside them are, also by a process that unpickles one of their objects.
            package.__path__.append(whole)
    names = {name for _, name, _ in pkgutil.iter_modules(package.__path__) if not name.startswith("_")}
    found = [tool for name in sorted(names) for tool in _tools_in(name)]
    for attribute in ("section", "command_name", "result_file"):
        _check_distinct(found, attribute)
    return tuple(sorted(found, key=lambda tool: (tool.order, tool.section)))


def _tools_in(name: str) -> list[type[Tool]]:
    from op_tools.tool import Tool

    try:
        module = importlib.import_module(f"{package.__name__}.{name}")
    except Exception as error:
        raise BadTool(f"the tool {name} cannot be imported: {type(error).__name__}: {error}") from error
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    own = [value for value in classes if issubclass(value, Tool) and value.__module__ == module.__name__]
    return [tool for tool in own if tool.section]


def _check_distinct(found: list[type[Tool]], attribute: str) -> None:
    owners: dict[str, type[Tool]] = {}
    for tool in found:
        value = getattr(tool, attribute)
        other = owners.setdefault(value, tool) if value else tool
        if other is not tool:
            raise BadTool(
                f"{tool.__module__}.{tool.__name__} and {other.__module__}.{other.__name__} have the same {attribute}, "
                f"{value!r}. Give one of them another, or take its folder out of {PATH.name}."
            )
