"""A record of every change made to torch, so that each one can be taken back exactly.

Nothing in `ditorch.mapping` assigns to a torch module or class directly: all changes go through `Patches`,
which knows what was there before. That is what makes `ditorch.disable()`, and the pause while the compiler
is imported, a loop over a list instead of a second, hand-kept list of restorations.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import warnings
from collections.abc import Callable, Iterator, MutableMapping, MutableSet
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = [
    "MISSING",
    "AttributePatch",
    "Change",
    "EntryPatch",
    "ItemPatch",
    "MemberPatch",
    "Patches",
    "set_c_attribute",
]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""Stands for "there was nothing under that name": undoing such a patch removes the name."""


class Change(Protocol):
    """One reversible change."""

    def install(self) -> None: ...

    def remove(self) -> bool:
        """Take the change back; False when somebody else has changed the same place since."""
        ...


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


class ItemPatch:
    """`table[key] = replacement`, for torch's own lookup tables."""

    def __init__(self, table: MutableMapping[Any, Any], key: Any, replacement: Any) -> None:
        self.table = table
        self.key = key
        self.replacement = replacement
        self.original = table.get(key, MISSING)

    def install(self) -> None:
        self.table[self.key] = self.replacement

    def remove(self) -> bool:
        if self.original is MISSING:
            self.table.pop(self.key, None)
        else:
            self.table[self.key] = self.original
        return True

    def __repr__(self) -> str:
        return f"[{self.key!r}]"


class EntryPatch:
    """An entry put into a list, found again by identity when it is taken out."""

    def __init__(self, entries: list[Any], entry: Any, position: Callable[[list[Any]], int]) -> None:
        self.entries = entries
        self.entry = entry
        self.position = position

    def install(self) -> None:
        if not any(entry is self.entry for entry in self.entries):
            self.entries.insert(self.position(self.entries), self.entry)

    def remove(self) -> bool:
        for index, entry in enumerate(self.entries):
            if entry is self.entry:
                del self.entries[index]
                break
        return True

    def __repr__(self) -> str:
        return f"entry {self.entry!r}"


class MemberPatch:
    """A member put into a set."""

    def __init__(self, members: MutableSet[Any], member: Any) -> None:
        self.members = members
        self.member = member
        self.was_there = member in members

    def install(self) -> None:
        self.members.add(self.member)

    def remove(self) -> bool:
        if not self.was_there:
            self.members.discard(self.member)
        return True

    def __repr__(self) -> str:
        return f"member {self.member!r}"


class Patches:
    """The changes of one mapping, in the order they were made.

    A change may be added before or after `install`; added to an installed set it takes effect at once.
    """

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._installed = False
        self._lock = threading.RLock()
        self._after_change: list[Callable[[], None]] = []

    @property
    def installed(self) -> bool:
        return self._installed

    def __iter__(self) -> Iterator[Change]:
        return iter(tuple(self._changes))

    def attributes(self) -> Iterator[AttributePatch]:
        """The attribute patches, for tables of torch that must know both original and replacement."""
        return (change for change in self if isinstance(change, AttributePatch))

    def set(self, owner: Any, name: str, replacement: Any) -> None:
        self._add(AttributePatch(owner, name, replacement))

    def set_item(self, table: MutableMapping[Any, Any], key: Any, replacement: Any) -> None:
        self._add(ItemPatch(table, key, replacement))

    def insert(self, entries: list[Any], entry: Any, position: Callable[[list[Any]], int]) -> None:
        self._add(EntryPatch(entries, entry, position))

    def include(self, members: MutableSet[Any], member: Any) -> None:
        self._add(MemberPatch(members, member))

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

    def _add(self, change: Change) -> None:
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
