"""What dicp raises."""

from __future__ import annotations

__all__ = ["CompileError", "DicpError", "InvalidGraphError", "UnknownBackendError", "UnsupportedError"]


class DicpError(RuntimeError):
    """Something that the user can mend; the text says what was wrong, what was expected, what to do."""


class UnknownBackendError(DicpError):
    """A name that no installed package has a backend for."""


class InvalidGraphError(DicpError):
    """A graph that breaks a rule of the typed graph: an error of the pass that made it."""


class UnsupportedError(DicpError):
    """A backend was given what it does not compile; the graph, or the part of it, runs eagerly."""


class CompileError(DicpError):
    """The vendor's compiler failed, or could not be run; the graph runs eagerly."""
