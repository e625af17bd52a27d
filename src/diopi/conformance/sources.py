"""The sources there are, by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from diopi.conformance.selection import SelectionError
from diopi.conformance.source import Source, parted

# name -> module and class, imported when wanted
_SOURCES = {
    "own": ("diopi.conformance.own_source", "OwnSource"),
    "opinfo": ("diopi.conformance.opinfo_source", "OpInfoSource"),
    "models": ("diopi.conformance.model_source", "ModelSource"),
}
NAMES = tuple(_SOURCES)
# What cases of the user's own files are called.
FILE = "file"


def named_sources(names: Sequence[str] | None, seed: int = 0) -> tuple[list[Source], list[str]]:
    """The sources of these names (all without names), and a line for each that cannot be had."""
    found: list[Source] = []
    problems: list[str] = []
    for name in names or NAMES:
        if name not in _SOURCES:
            raise SelectionError(f"there is no source {name!r}; known are {', '.join(NAMES)}")
        source = _made(name, seed)
        problem = source if isinstance(source, str) else _problem(source)
        if problem is None and not isinstance(source, str):
            found.append(source)
        else:
            problems.append(f"{name}: {problem}")
    return found, problems


def source_of(case: str, seed: int = 0) -> tuple[list[Source], list[str]]:
    """The source of one case; of a model all calls, also those that other models make too."""
    try:
        name, group, _ = parted(case)
    except ValueError as error:
        raise SelectionError(str(error)) from None
    if name == FILE or name.startswith(f"{FILE}-"):
        raise SelectionError(f"{case} is a case of a file that you wrote; give the file with --cases")
    if name == "models":
        from diopi.conformance.model_source import ModelSource

        try:
            return [ModelSource([group])], []
        except ValueError as error:
            raise SelectionError(f"there is no case {case}: {error}") from None
    return named_sources([name], seed)


def _made(name: str, seed: int) -> Source | str:
    module, made = _SOURCES[name]
    try:
        kind = getattr(importlib.import_module(module), made)
    except ModuleNotFoundError as error:
        return f"not there ({error})"
    source: Source = kind(seed) if name == "own" else kind()
    return source


def _problem(source: Source) -> str | None:
    asked = getattr(source, "problem", None)
    return asked() if asked is not None else None
