"""What `torch.compile(mode=..., options=...)` says, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dicore.settings import flag
from dicore.suggestions import did_you_mean
from dicp.backend import Backend
from dicp.errors import OptionError
from dicp.settings import FREEZING

__all__ = ["read_options"]


def read_options(backend: Backend, mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options in force: `freezing`, and what the backend declares and the user gave. Raises OptionError."""
    given = dict(options or {})
    if mode not in (None, "default"):
        given["mode"] = mode
    found: dict[str, Any] = {"freezing": FREEZING.get()}
    readers = {"freezing": _flag, **backend.options}
    for name, value in given.items():
        if name == "mode" and name not in readers:
            raise OptionError(
                f"torch.compile(mode={value!r}): {backend.name} has no modes. Leave the argument out."
            )
        if name not in readers:
            raise OptionError(
                f"torch.compile(options={{{name!r}: ...}}): {backend.name} has no such option.{did_you_mean(name, readers)}"
                f" It has {', '.join(sorted(readers))}."
            )
        try:
            found[name] = readers[name](value)
        except (ValueError, TypeError) as error:
            raise OptionError(f"torch.compile(options={{{name!r}: {value!r}}}): {error}") from error
    return found


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else flag(str(value))
