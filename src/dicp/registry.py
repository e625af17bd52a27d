"""Backends by name: folders that packages announce by an entry point, of which no list is kept here.

    [project.entry-points."torch_dynamo_backends"]
    mygraph = "my_package.MyGraph:mygraph"

is what torch.compile itself reads. The function that it names calls `compile_fx(gm, inputs, "mygraph")`; the object that
compiles is `my_package.MyGraph.config.BACKEND`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from dicore.suggestions import did_you_mean
from dicp.backend import Backend
from dicp.errors import DicpError, ForeignBackendError, UnknownBackendError

__all__ = ["GROUP", "find", "names", "register"]

GROUP = "torch_dynamo_backends"
_REGISTERED: dict[str, Backend] = {}


def register(backend: Backend) -> Backend:
    """Adds a backend for this process only; it comes before announced ones of its name."""
    _REGISTERED[backend.name] = backend
    return backend


def find(name: str) -> Backend:
    """The backend of a name. Raises UnknownBackendError, and DicpError where its folder cannot be used."""
    return _REGISTERED.get(name) or _announced(name)


def names() -> list[str]:
    """The names there are. Announced folders are not imported for it, so one of them may turn out to be no backend of dicp."""
    return list(dict.fromkeys([*_REGISTERED, *(point.name for point in _points())]))


def _points() -> Iterator[EntryPoint]:
    yield from entry_points(group=GROUP)


@cache
def _announced(name: str) -> Backend:
    for point in _points():
        if point.name == name:
            return _of_folder(point)
    known = names()
    raise UnknownBackendError(
        f"there is no backend {name!r} for compile_fx.{did_you_mean(name, known)} Installed are: {', '.join(known) or 'none'}."
        f" A package announces one by an entry point of the group {GROUP!r}; after adding one, install the package again."
    )


def _of_folder(point: EntryPoint) -> Backend:
    module = f"{point.module}.config"
    try:
        found = getattr(import_module(module), "BACKEND", None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        kind = ForeignBackendError if error.name == module else DicpError
        raise kind(
            f"backend {point.name!r}: there is no module {error.name!r}. The entry point {point.value!r} needs {module} with"
            " BACKEND, an object of a subclass of dicp.backend.Backend."
        ) from error
    if not isinstance(found, Backend):
        what = "is missing" if found is None else f"is a {type(found).__name__}"
        raise DicpError(
            f"backend {point.name!r}: {module}.BACKEND {what}, expected an object of a subclass of dicp.backend.Backend."
        )
    if found.name != point.name:
        raise DicpError(
            f"backend {point.name!r}: {module}.BACKEND.name is {found.name!r}. It must be the name of the entry point."
        )
    return found
