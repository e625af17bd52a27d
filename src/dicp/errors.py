"""What dicp raises, and what it says once."""

from __future__ import annotations

import logging

__all__ = [
    "CommandLineError",
    "CompileError",
    "DicpError",
    "ForeignBackendError",
    "InvalidGraphError",
    "OptionError",
    "UnknownBackendError",
    "UnsupportedError",
    "warn_once",
]

LOG = logging.getLogger("dicp")
_SAID: set[str] = set()


class DicpError(RuntimeError):
    """Something that the user can mend; the text says what was wrong, what was expected, what to do."""


class UnknownBackendError(DicpError):
    """A name that no installed package has a backend for."""


class ForeignBackendError(DicpError):
    """A name that torch.compile knows, whose package does not compile by way of dicp."""


class OptionError(DicpError):
    """`torch.compile(mode=..., options=...)` with what the backend does not know."""


class InvalidGraphError(DicpError):
    """A graph that breaks a rule of the typed graph: an error of the pass that made it."""


class CommandLineError(DicpError):
    """Words of the command line that cannot be followed."""


class UnsupportedError(DicpError):
    """A backend was given what it does not compile; the graph, or the part of it, runs eagerly."""


class CompileError(DicpError):
    """The vendor's compiler failed, or could not be run; the graph runs eagerly."""


def warn_once(cause: str, text: str) -> None:
    """Warns through the logger `dicp`, once a process for each cause; later ones are for the debugging level."""
    level = logging.DEBUG if cause in _SAID else logging.WARNING
    _SAID.add(cause)
    LOG.log(level, "%s", text)
