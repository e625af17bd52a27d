"""A record of every change made to torch, so that each one can be taken back exactly.

Nothing in `ditorch.mapping` assigns to a torch module or class directly: all changes go through `Patches`,
which knows what was there before. That is what makes `ditorch.disable()`, and the pause while the compiler
is imported, a loop over a list instead of a second, hand-kept list of restorations.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import threading
import warnings
from collections.abc import Callable, Iterator, MutableMapping, MutableSet
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

__all__ = ["MISSING", "AttributePatch", "Patches", "disguise", "set_c_attribute"]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""Stands for "there was nothing under that name": undoing such a patch removes the name."""


def disguise(
    wrapper: Callable[..., Any], original: Callable[..., Any], module: str = "", qualname: str = ""
) -> Callable[..., Any]:
    """Give a wrapper the name, module and documentation of what it wraps: it pickles and prints alike.

    `module` and `qualname` are for functions in C, which do not tell under which name they are public.
    """
    functools.update_wrapper(wrapper, original)
    wrapper.__module__ = module or wrapper.__module__
    wrapper.__qualname__ = qualname or wrapper.__qualname__
    return wrapper


class AttributePatch:
    """`owner.name = replacement`, where owner is a module or a class."""

    def __init__(self, owner: Any, name: str, replacement: Any) -> None:
        self.owner = owner
        self.name = name
        self.replacement = replacement
        # vars() and not getattr(): an inherited attribute must be uncovered again on undo, not copied down,
        # and a classmethod or property must come back as the descriptor it was.
        self.original = vars(owner).get(name, MISSING)

    def install(self) -> None:
        if vars(self.owner).get(self.name, MISSING) is self.original:
            setattr(self.owner, self.name, self.replacement)

    def remove(self) -> bool:
        """Take the change back; False when somebody else has changed the same attribute since."""
        current = vars(self.owner).get(self.name, MISSING)
        if current is not self.replacement:
            return current is self.original
        if self.original is MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)
        return True

    def __repr__(self) -> str:
        return f"{getattr(self.owner, '__name__', self.owner)!s}.{self.name}"


@dataclass(frozen=True)
class _ContentPatch:
    """A change to what a table, list or set of torch holds."""

    install: Callable[[], None]
    undo: Callable[[], None]

    def remove(self) -> bool:
        self.undo()
        return True


class Patches:
    """The changes of one mapping, in the order they were made.

    A change may be added before or after `install`; added to an installed set it takes effect at once.
    """

    def __init__(self) -> None:
        self._changes: list[AttributePatch | _ContentPatch] = []
        self._installed = False
        self._lock = threading.RLock()
        self._after_change: list[Callable[[], None]] = []

    @property
    def installed(self) -> bool:
        return self._installed

    def attributes(self) -> Iterator[AttributePatch]:
        """The attribute patches, for tables of torch that must know both original and replacement."""
        return (change for change in tuple(self._changes) if isinstance(change, AttributePatch))

    def set(self, owner: Any, name: str, replacement: Any) -> None:
        self._add(AttributePatch(owner, name, replacement))

    def wrap(self, owner: Any, wrapper: Callable[..., Any], name: str = "", *, also: Any = ()) -> None:
        """Put a function in place of the one that a module or class has under its name, disguised as that one.

        `also`: other modules that hold the same function.
        """
        name = name or wrapper.__name__
        module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
        qualname = name if isinstance(owner, ModuleType) else f"{owner.__qualname__}.{name}"
        disguise(wrapper, getattr(owner, name), module, qualname)
        for each in (owner, *also):
            self.set(each, name, wrapper)

    def set_item(self, table: MutableMapping[Any, Any], key: Any, replacement: Any) -> None:
        original = table.get(key, MISSING)

        def undo() -> None:
            if original is MISSING:
                table.pop(key, None)
            else:
                table[key] = original

        self._add(_ContentPatch(lambda: table.__setitem__(key, replacement), undo))

    def insert(self, entries: list[Any], entry: Any, position: Callable[[list[Any]], int]) -> None:
        """Put an entry into a list; it is found again by identity when it is taken out."""

        def install() -> None:
            if not any(each is entry for each in entries):
                entries.insert(position(entries), entry)

        def undo() -> None:
            entries[:] = [each for each in entries if each is not entry]

        self._add(_ContentPatch(install, undo))

    def include(self, members: MutableSet[Any], member: Any) -> None:
        if member not in members:
            self._add(_ContentPatch(lambda: members.add(member), lambda: members.discard(member)))

    def after_change(self, callback: Callable[[], None]) -> None:
        """Call back each time the changes have been installed or removed (to drop torch's cached tables)."""
        self._after_change.append(callback)

    def install(self) -> None:
        with self._lock:
            if self._installed:
                return
            for change in self._changes:
                change.install()
            self._installed = True
            self._notify()

    def remove(self, *, warn: bool = True) -> None:
        with self._lock:
            if not self._installed:
                return
            kept = [change for change in reversed(self._changes) if not change.remove()]
            self._installed = False
            self._notify()
        if kept and warn:
            names = ", ".join(repr(change) for change in kept)
            warnings.warn(
                f"{names}: patched by another library after ditorch, so ditorch's part underneath stays",
                RuntimeWarning,
                stacklevel=3,
            )

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Run a block with torch as it was; a no-op when nothing is installed."""
        with self._lock:
            was_installed = self._installed
            self.remove(warn=False)
            try:
                yield
            finally:
                if was_installed:
                    self.install()

    def _add(self, change: AttributePatch | _ContentPatch) -> None:
        with self._lock:
            self._changes.append(change)
            if self._installed:
                change.install()

    def _notify(self) -> None:
        for callback in self._after_change:
            callback()


# -- attributes of C types, to which Python does not let one assign --------------------------------------------


def set_c_attribute(patches: Patches, kind: type, name: str, value: Any) -> None:
    """Note the change `kind.name = value`."""
    patches.set_item(_attributes_of(kind), name, value)
    patches.after_change(lambda: _forget_lookups(kind))


def _attributes_of(kind: type) -> dict[str, Any]:
    """The dictionary behind `kind.__dict__`: for a C type Python hands out a read-only view of it only."""
    found: dict[str, Any] = gc.get_referents(kind.__dict__)[0]
    return found


def _forget_lookups(kind: type) -> None:
    """Python remembers where it found an attribute; a change of the dictionary itself must be told to it."""
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
